# Source it: bazel_options are the startup options that the installed Bazel needs. Debian 12's says "no_version", and is 4.2.3.
bazel_options=()
case $(bazel --version) in
  'bazel '[1-6].* | 'bazel no_version') ;;
  *) bazel_options=(--bazelrc="$(dirname "${BASH_SOURCE[0]}")/bazel7.bazelrc") ;;
esac

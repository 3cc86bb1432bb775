#!/usr/bin/env bash
# tools/site/build.sh [FOLDER]: the pages as a site, in FOLDER or .cache/site. A link that leads nowhere is an error.
# mkdocs is fetched once, by pinned hashes, into the user's cache. DTENSOR_SITE_REPOSITORY=https://.../blob/main says where links to
# source files lead.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../../.cache/site}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${DTENSOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dtensor}
packages=$cache/mkdocs-$(sha256sum tools/site/requirements.txt | cut -c1-12)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ ! -d "$packages" ]; then
  python3 -m pip install --quiet --disable-pip-version-check --no-input --root-user-action=ignore --no-cache-dir --no-deps \
    --require-hashes --only-binary=:all: --target "$work/packages" --requirement tools/site/requirements.txt
  mkdir -p "$cache"
  mv -T "$work/packages" "$packages"
fi
mkdir -p "$work/pages/docs"
cp ./*.md "$work/pages/"
cp docs/*.md "$work/pages/docs/"
cp -r docs/tables "$work/pages/docs/"
PYTHONPATH=$packages PYTHONDONTWRITEBYTECODE=1 DTENSOR_SITE_PAGES=$work/pages \
  python3 -m mkdocs build --strict --clean --config-file tools/site/mkdocs.yml --site-dir "$out"
echo "$out/index.html"

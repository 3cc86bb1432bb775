// Functions of both host and device code.
#pragma once

#if defined(__CUDACC__)
#define DTENSOR_HOST_DEVICE __host__ __device__ inline
#else
#define DTENSOR_HOST_DEVICE inline
#endif

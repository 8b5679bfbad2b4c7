#include "w4a16.cuh"

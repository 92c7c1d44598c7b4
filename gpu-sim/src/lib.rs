//! One shared library that answers for libcuda.so.1, libcudart.so, libnvidia-ml.so.1 and
//! libgdrapi.so: GPUs that exist in this process's memory alone.
//!
//! Device memory has addresses that neither the processor nor the kernel can touch: a program that
//! does so by mistake gets SIGSEGV, and a system call EFAULT. Its bytes are in a memfd, which the
//! copies of this library see through a mapping of their own (`memory`). A thread has a current
//! context or none (`context`), copies on a stream happen later, by a thread (`stream`). `driver`
//! and `runtime` are the two interfaces of CUDA, `nvml` the management library, `gdr` GDRCopy.
//! `rocr` answers for the runtime of AMD GPUs, `accelerators` for those of Neuron and Gaudi
//! devices. `counts` counts calls by library and function.
//!
//! Settings come from the environment, which `gpu-sim run` fills: see `config`.

#![allow(non_snake_case)]

mod accelerators;
mod config;
mod context;
mod counts;
mod driver;
mod exports;
mod gdr;
mod memory;
mod nvml;
mod rocr;
mod runtime;
mod stream;
mod vmm;

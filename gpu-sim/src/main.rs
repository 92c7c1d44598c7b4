//! `gpu-sim run [options] -- command`: runs a command, and whatever it starts, on a machine with
//! GPUs that are emulated below CUDA (see the library beside this program).

use clap::{Parser, Subcommand, ValueEnum};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use tempfile::TempDir;

#[derive(Parser)]
#[command(about = "Emulated GPUs for unmodified CUDA programs")]
struct Options {
    #[command(subcommand)]
    what: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Runs a command with emulated GPUs.
    Run {
        /// Whose libraries the program finds.
        #[arg(long, value_enum, default_value = "cuda")]
        device: DeviceLibraries,
        /// Number of GPUs.
        #[arg(long, default_value_t = 1)]
        gpus: usize,
        /// Microseconds before a copy on a stream is carried out.
        #[arg(long, default_value_t = 0)]
        delay_us: u64,
        /// No dma-bufs of device memory.
        #[arg(long)]
        no_dmabuf: bool,
        /// No driver of GDRCopy.
        #[arg(long)]
        no_gdrcopy: bool,
        /// Functions that fail: `name` or `name=code`, separated by commas.
        #[arg(long, default_value = "")]
        fail: String,
        /// A file that gets a line for each library and function: process, library, function,
        /// calls.
        #[arg(long)]
        counts: Option<PathBuf>,
        /// The library, if not beside this program.
        #[arg(long)]
        library: Option<PathBuf>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Devices by their libraries.
#[derive(Clone, Copy, ValueEnum)]
enum DeviceLibraries {
    Cuda,
    Rocr,
    Neuron,
    Synapse,
}

impl DeviceLibraries {
    /// Library names that programs load.
    fn names(self) -> &'static [&'static str] {
        match self {
            DeviceLibraries::Cuda => &[
                "libcuda.so.1",
                "libcuda.so",
                "libcudart.so",
                "libcudart.so.12",
                "libcudart.so.13",
                "libnvidia-ml.so.1",
                "libgdrapi.so",
                "libgdrapi.so.2",
            ],
            DeviceLibraries::Rocr => &["libhsa-runtime64.so.1"],
            DeviceLibraries::Neuron => &["libnrt.so.1"],
            DeviceLibraries::Synapse => &["libSynapse.so"],
        }
    }
}

/// A folder with the library under each of its names.
fn folder(library: &Path, device: DeviceLibraries) -> std::io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("gpu-sim-").tempdir()?;
    for name in device.names() {
        std::os::unix::fs::symlink(library, folder.path().join(name))?;
    }
    Ok(folder)
}

/// Makes the calling process end with this one, also after exec.
fn end_with_parent() -> std::io::Result<()> {
    // SAFETY: plain numbers are passed.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn main() -> ExitCode {
    match run(Options::parse().what) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("gpu-sim: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(what: CliCommand) -> std::io::Result<u8> {
    let CliCommand::Run {
        device,
        gpus,
        delay_us,
        no_dmabuf,
        no_gdrcopy,
        fail,
        counts,
        library,
        command,
    } = what;
    let beside = std::env::current_exe()?.with_file_name("libgpu_sim.so");
    let library = library.unwrap_or(beside).canonicalize()?;
    let folder = folder(&library, device)?;
    let mut path = folder.path().as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(more);
    }
    let [program, args @ ..] = command.as_slice() else {
        return Ok(2);
    };
    let mut program = Command::new(program);
    // SAFETY: between fork and exec, it makes one system call.
    unsafe { program.pre_exec(end_with_parent) };
    let status = program
        .args(args)
        .env("LD_LIBRARY_PATH", path)
        .env("GPU_SIM_GPUS", gpus.to_string())
        .env("GPU_SIM_DELAY_US", delay_us.to_string())
        .env("GPU_SIM_DMABUF", u8::from(!no_dmabuf).to_string())
        .env("GPU_SIM_GDRCOPY", u8::from(!no_gdrcopy).to_string())
        .envs((!fail.is_empty()).then_some(("GPU_SIM_FAIL", fail)))
        .envs(counts.map(|path| ("GPU_SIM_COUNTS", path)))
        .status()?;
    let signal = status.signal().map(|s| 128 + s);
    Ok(status.code().or(signal).unwrap_or(1) as u8)
}

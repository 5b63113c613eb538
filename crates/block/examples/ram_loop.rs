//! Serves plain memory as a loop device until standard input ends.
//!
//! Benchmarks compare the loop export of a compressed device with it as an upper bound. It also shows the steps of a
//! minimal server: prepare for swap, start, stop. Run as root: `ram_loop SIZE MOUNT_POINT [THREADS [uring]]`.

use pagefold_block::RamDevice;
use pagefold_block::loop_export::{LoopExport, LoopOptions};
use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    // Harden before any thread is started: threads inherit the settings.
    for refused in pagefold_sys::harden::for_swap().refused() {
        eprintln!("not safe to swap to: {refused}");
    }
    let mut args = std::env::args().skip(1);
    let usage = "usage: ram_loop SIZE MOUNT_POINT [THREADS [uring]]";
    let len_bytes = pagefold_page::size::parse(&args.next().ok_or(usage)?)?;
    let mount_point = PathBuf::from(args.next().ok_or(usage)?);
    let threads = args.next().map_or(Ok(2), |t| t.parse())?;
    let uring = args.next().is_some_and(|word| word == "uring");
    let options = LoopOptions { threads, uring, ..LoopOptions::default() };
    let mut export = LoopExport::start(Arc::new(RamDevice::new(len_bytes)), &mount_point, options)?;
    println!("{}", export.device_path().display());
    eprintln!("{:?}, {:?}", export.threads(), export.transport());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(export.stop()?)
}

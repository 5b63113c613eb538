//! The loop export over io_uring. The tests set the kernel's parameter, which only new mounts read, and restore it.

use crate::support::loop_device::{TestExport, is_clean, open_direct, run, skip};
use pagefold_block::loop_export::{ExportError, LoopExport, LoopOptions};
use pagefold_block::{BlockDevice, BlockError, RamDevice};
use pagefold_fuse::Transport;
use pagefold_page::AlignedBytes;
use pagefold_sys::fusering::{self, ENABLED};
use pagefold_testkit::parameter::Parameter;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const MIB: usize = 1 << 20;
/// A read from here ends the thread that serves it.
const TRAP: u64 = 5 * MIB as u64;

/// Sets the parameter that offers rings to new mounts, or prints that `test` is skipped.
pub(crate) fn offer_rings(test: &str, value: &str) -> Option<Parameter> {
    Parameter::set(ENABLED.as_ref(), value).map_or_else(|e| skip(test, &format!("{ENABLED}: {e}")), Some)
}

/// A device with a trap.
struct Trapped(RamDevice);

impl BlockDevice for Trapped {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        assert_ne!(offset, TRAP, "this thread ends");
        self.0.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), BlockError> {
        self.0.write_at(offset, data)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.0.write_zeroes(offset, len)
    }
    fn flush(&self) -> Result<(), BlockError> {
        self.0.flush()
    }
}

fn start(test: &str, threads: usize) -> Option<TestExport> {
    let dir = tempfile::tempdir().unwrap();
    let options = LoopOptions { threads, uring: true, ..LoopOptions::default() };
    match LoopExport::start(Arc::new(Trapped(RamDevice::new(16 * MIB as u64))), dir.path(), options) {
        Ok(export) => Some(TestExport { export, dir }),
        Err(ExportError::Unavailable(why)) => skip(test, &why.to_string()),
        Err(e) => panic!("{e}"),
    }
}

/// Writes and reads the device from a thread on each CPU, with requests of many lengths.
fn exercise(export: &TestExport) {
    std::thread::scope(|scope| {
        for cpu in 0..pagefold_sys::cpu::count().min(4) {
            scope.spawn(move || {
                assert!(pagefold_sys::cpu::pin(cpu));
                let file = open_direct(export.path());
                let base = (cpu % 4) * 2 * MIB;
                for (round, len) in [4096, 8192, 65536, 1 << 20, 4096 * 200].into_iter().enumerate() {
                    let fill = (cpu * 16 + round + 1) as u8;
                    let mut bytes = AlignedBytes::new(len, fill);
                    bytes[len - 1] = !fill;
                    file.write_all_at(&bytes, (base + round * 4096) as u64).unwrap();
                    let mut back = AlignedBytes::new(len, 0);
                    file.read_exact_at(&mut back, (base + round * 4096) as u64).unwrap();
                    assert!(*back == *bytes, "{cpu}: {len}");
                }
                file.sync_all().unwrap();
            });
        }
    });
}

#[test]
fn rings_serve_where_the_kernel_offers_them() {
    let test = "rings_serve_where_the_kernel_offers_them";
    let Some(parameter) = offer_rings(test, "1") else { return };
    for threads in [2, 5] {
        let Some(mut export) = start(test, threads) else { return };
        let queues = fusering::queues().unwrap();
        let Transport::Rings { threads: rings, buffer_bytes, .. } = export.export.disk().transport().clone()
        else {
            panic!("{:?}", export.export.disk().transport());
        };
        assert_eq!(rings, queues * threads.div_ceil(queues).max(2));
        assert!(buffer_bytes >= rings * MIB);
        // The rings, and the thread that reads requests to forget.
        assert_eq!(export.export.disk().threads().threads, rings + 1);
        exercise(&export);
        // A mount keeps its transport.
        parameter.change("0");
        exercise(&export);
        parameter.change("1");
        run("blkdiscard", &[export.path().to_str().unwrap()]);
        let mut back = AlignedBytes::new(MIB, 7);
        open_direct(export.path()).read_exact_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|byte| *byte == 0));
        export.export.stop().unwrap();
        assert!(is_clean(export.dir.path()));
    }
    drop(parameter);
}

#[test]
fn the_device_serves_where_the_kernel_does_not_offer_rings() {
    let test = "the_device_serves_where_the_kernel_does_not_offer_rings";
    let Some(_parameter) = offer_rings(test, "0") else { return };
    let Some(mut export) = start(test, 2) else { return };
    let Transport::Device { without_rings: Some(reason) } = export.export.disk().transport() else {
        panic!("{:?}", export.export.disk().transport());
    };
    assert!(reason.contains("enable_uring"), "{reason}");
    exercise(&export);
    export.export.stop().unwrap();
}

#[test]
fn requests_fail_when_a_thread_with_a_ring_has_ended() {
    let test = "requests_fail_when_a_thread_with_a_ring_has_ended";
    let Some(_parameter) = offer_rings(test, "1") else { return };
    let Some(export) = start(test, 2) else { return };
    assert!(matches!(export.export.disk().transport(), Transport::Rings { .. }));
    let file = open_direct(export.path());
    let mut bytes = AlignedBytes::new(4096, 0);
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(file.read_exact_at(&mut bytes, TRAP).is_err());
    // From every CPU, and not after a time limit.
    for cpu in 0..pagefold_sys::cpu::count() {
        let failed = std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                assert!(pagefold_sys::cpu::pin(cpu));
                file.read_exact_at(&mut AlignedBytes::new(4096, 0), 8192).is_err()
            });
            read.join().unwrap()
        });
        assert!(failed, "{cpu}");
    }
    drop(file);
    let dir = export.dir.path().to_path_buf();
    drop(export);
    assert!(is_clean(&dir));
}

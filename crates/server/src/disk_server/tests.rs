//! A model check of a disk's life cycle: threads read and write while others recompress, write back, compact, read
//! statistics, reset the disk and give it sizes again. The contents are compared with plain memory.
//!
//! Everything but the export is the real server. The choices come from seeds, but threads run freely, so a run is not
//! repeated exactly by its seed.

use super::*;
use crate::export::{Export, Kept, Users};
use pagefold_block::BlockDevice;
use pagefold_control::error::Exit;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::instance::state::ExportState;
use pagefold_control::report::disk::ClientsReport;
use pagefold_fuse::SessionEnd;
use pagefold_page::PAGE_SIZE;
use std::sync::atomic::AtomicUsize;
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Duration;

/// Pages of the smallest disk of the check.
const PAGES: u64 = 512;
const WRITERS: u64 = 2;

/// An export that nobody can use, with as many users as the test says.
struct NoExport {
    users: Arc<AtomicUsize>,
    /// Waited for twice before a size is changed.
    gate: Option<Arc<Barrier>>,
    /// The end of its threads, as the test says.
    end: Arc<Mutex<Option<SessionEnd>>>,
}

impl Export for NoExport {
    fn kind(&self) -> ExportKind {
        ExportKind::Nbd
    }

    fn kept(&self) -> Kept<'_> {
        Kept { state: self.state(), mount: None, listener: None }
    }

    fn state(&self) -> ExportState {
        ExportState::Nbd { uri: String::new() }
    }

    fn users(&self) -> Vec<String> {
        vec!["a test".to_string(); self.users.load(Ordering::Relaxed)]
    }

    fn clients(&self) -> Option<ClientsReport> {
        None
    }

    fn end(&self) -> Option<SessionEnd> {
        self.end.lock().unwrap().clone()
    }

    fn resize(&self, users: Users, change: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match users == Users::Refuse && self.users.load(Ordering::Relaxed) > 0 {
            true => Err(CliError::new(Exit::Busy, "in use")),
            false => {
                self.gate.iter().for_each(|gate| {
                    gate.wait();
                    gate.wait();
                });
                change()
            }
        }
    }

    fn close(&self, _: bool) -> Result<()> {
        Ok(())
    }
}

/// A server of a disk without a size, and the folder that it is in.
fn server(users: &Arc<AtomicUsize>) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let dir = InstanceDir::at(folder.path().join("zram0")).unwrap();
    dir.create().unwrap();
    let config = DiskConfig::new(0, "lz4", ExportKind::Nbd);
    let parts = Parts {
        disk: Disk::new(dir.name().clone(), &config, None, None).unwrap(),
        export: Box::new(NoExport { users: users.clone(), gate: None, end: Default::default() }),
        swap_warning: None,
        warnings: Vec::new(),
        broker: None,
        confinement: Default::default(),
        has_created: false,
    };
    let server = Server::new(&dir, parts, None, None, None, wake_pair().unwrap().0);
    (server, folder)
}

fn write(server: &Server, attribute: &str, text: &str) -> Result<()> {
    let opened = attributes::open_files([(attribute, text)], attributes::Syntax::Kernel);
    let fds = opened.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let files = opened.named();
    let request = Request::Write { attribute: attribute.into(), text: text.into(), files };
    match server.handle(request, fds, &mut |_| true) {
        Response::Done => Ok(()),
        Response::Refused(e) => Err(e),
        other => panic!("{other:?}"),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// A page that only the seed decides: repeated words, text, or bytes that do not compress. Seed 0 is zeroes.
fn page(seed: u64) -> [u8; PAGE_SIZE] {
    let mut random = Random(seed | 1 << 40);
    match seed % 4 {
        _ if seed == 0 => [0; PAGE_SIZE],
        0 => [seed as u8; PAGE_SIZE],
        1 => std::array::from_fn(|_| random.below(256) as u8),
        _ => std::array::from_fn(|at| if at % 3 == 0 { random.below(20) as u8 } else { seed as u8 }),
    }
}

/// One of the threads that read and write. It has every [`WRITERS`]th page, so no other changes what it has written.
struct Writer {
    random: Random,
    first: u64,
    /// The seed of the contents of each page.
    model: Vec<u64>,
}

impl Writer {
    fn step(&mut self, device: &dyn BlockDevice) {
        let at = self.random.below(self.model.len() as u64);
        let offset = (self.first + at * WRITERS) * PAGE_SIZE as u64;
        let model = &mut self.model[at as usize];
        match self.random.below(8) {
            0..=3 => {
                let mut buf = [1; PAGE_SIZE];
                device.read_at(offset, &mut buf).unwrap();
                assert!(
                    buf == page(*model),
                    "page {} is not that of seed {model}",
                    offset / PAGE_SIZE as u64
                );
            }
            4..=6 => {
                *model = self.random.below(1 << 20) + 1;
                device.write_at(offset, &page(*model)).unwrap();
            }
            _ => {
                *model = 0;
                device.write_zeroes(offset, PAGE_SIZE as u64).unwrap();
            }
        }
    }
}

/// Does what administrators do while the disk is used. Nothing of it changes contents.
fn disturb(server: &Server, random: &mut Random) {
    let (attribute, text) = random.pick(&[
        ("compact", "1"),
        ("idle", "all"),
        ("idle", "1"),
        ("writeback", "idle"),
        ("writeback", "type=huge"),
        ("writeback", "page_indexes=0-99"),
        ("recompress", "type=idle"),
        ("recompress", "type=huge priority=1"),
        ("recompress", "max_pages=50 threshold=100"),
        ("mem_used_max", "0"),
        ("writeback_batch_size", "3"),
        ("reset", "1"),
        ("disksize", "1G"),
        ("comp_algorithm", "lzo"),
    ]);
    let done = write(server, attribute, text);
    match (attribute, done) {
        // The disk has a size, and is in use.
        ("reset" | "disksize" | "comp_algorithm", Err(e)) => assert_eq!(e.exit, Exit::Busy, "{e}"),
        // A disk without a backing.
        ("writeback", Err(e)) => assert_eq!(e.errno, Some(libc::ENODEV), "{e}"),
        (_, done) => done.unwrap(),
    }
    let Response::Report(report) = server.handle(Request::Show {}, Vec::new(), &mut |_| true) else {
        panic!()
    };
    assert_eq!(report.attributes["initstate"], "1");
}

/// Gives the disk other settings and a size.
fn begin(server: &Server, backing: &std::path::Path, random: &mut Random) -> u64 {
    write(server, "comp_algorithm", random.pick(&["lz4", "lzo-rle", "zstd", "deflate"])).unwrap();
    write(server, "recomp_algorithm", random.pick(&["algo=zstd", "algo=lz4hc priority=2"])).unwrap();
    write(server, "recomp_algorithm", "algo=deflate").unwrap();
    if random.below(3) > 0 {
        write(server, "compressed_writeback", random.pick(&["0", "1"])).unwrap();
        write(server, "backing_dev", backing.to_str().unwrap()).unwrap();
    }
    let pages = PAGES << random.below(2);
    write(server, "disksize", &(pages * PAGE_SIZE as u64).to_string()).unwrap();
    pages
}

/// Runs `steps` reads and writes, with a reset after every 4000.
fn check(steps: u64) {
    const ROUND: u64 = 4000;
    let users = Arc::new(AtomicUsize::new(0));
    let (server, folder) = server(&users);
    let backing = folder.path().join("backing");
    File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    for round in 0..steps.div_ceil(ROUND) {
        let mut random = Random(0x5eed + round);
        let pages = begin(&server, &backing, &mut random);
        let device = server.disk.device();
        users.store(1, Ordering::Relaxed);
        std::thread::scope(|s| {
            let writer = |first| {
                let random = Random(1 + round * WRITERS + first);
                let mut writer = Writer { random, first, model: vec![0; (pages / WRITERS) as usize] };
                let device = &*device;
                s.spawn(move || (0..ROUND / WRITERS).for_each(|_| writer.step(device)))
            };
            let writers: Vec<_> = (0..WRITERS).map(writer).collect();
            while !writers.iter().all(|writer| writer.is_finished()) {
                disturb(&server, &mut random);
            }
        });
        users.store(0, Ordering::Relaxed);
        write(&server, "reset", "1").unwrap();
        assert_eq!(server.disk.size_bytes(), 0);
        assert!(device.read_at(0, &mut [0]).is_err());
    }
}

#[test]
fn contents_are_those_of_a_model_through_passes_resets_and_new_sizes() {
    // The full tier takes a million steps.
    let is_full = std::env::var_os("PAGEFOLD_FULL").is_some();
    check(if is_full { 1_000_000 } else { 40_000 });
}

#[test]
fn a_disk_in_use_is_not_reset_and_one_that_gets_no_size_can_try_again() {
    let users = Arc::new(AtomicUsize::new(0));
    let (server, _folder) = server(&users);
    write(&server, "algorithm_params", "level=77").unwrap();
    write(&server, "comp_algorithm", "deflate").unwrap();
    assert_eq!(write(&server, "disksize", "1M").unwrap_err().errno, Some(libc::EINVAL));
    assert!(server.disk.running().is_none());
    write(&server, "algorithm_params", "level=7").unwrap();
    write(&server, "disksize", "1M").unwrap();
    assert_eq!(server.disk.size_bytes(), 1 << 20);
    server.disk.device().write_at(0, &[7; 8192]).unwrap();
    users.store(1, Ordering::Relaxed);
    assert_eq!(write(&server, "reset", "1").unwrap_err().exit, Exit::Busy);
    let mut byte = [0];
    server.disk.device().read_at(8191, &mut byte).unwrap();
    assert_eq!(byte, [7]);
    users.store(0, Ordering::Relaxed);
    write(&server, "reset", "1").unwrap();
    assert_eq!(server.disk.size_bytes(), 0);
    // A disk without a size can be reset too: its settings are lost.
    write(&server, "comp_algorithm", "zstd").unwrap();
    write(&server, "reset", "1").unwrap();
    assert_eq!(server.disk.setup().primary().name, "lz4");
}

#[test]
fn reports_and_attributes_do_not_wait_for_a_change_of_the_size() {
    let users = Arc::new(AtomicUsize::new(0));
    let (mut server, _folder) = server(&users);
    let gate = Arc::new(Barrier::new(2));
    server.export = Box::new(NoExport { users, gate: Some(gate.clone()), end: Default::default() });
    let server = &server;
    for (attribute, text, size) in [("disksize", "1M", "1048576"), ("reset", "1", "0")] {
        let (answered, is_answered) = mpsc::channel();
        let in_time = std::thread::scope(|s| {
            s.spawn(|| write(server, attribute, text).unwrap());
            gate.wait();
            s.spawn(move || {
                server.handle(Request::Show {}, Vec::new(), &mut |_| true);
                for attribute in attributes::all() {
                    server
                        .handle(Request::Get { attribute: attribute.name.into() }, Vec::new(), &mut |_| true);
                }
                // The test may have given up waiting.
                let _ = answered.send(());
            });
            let in_time = is_answered.recv_timeout(Duration::from_secs(60)).is_ok();
            gate.wait();
            in_time
        });
        assert!(in_time, "a request waits for {attribute}");
        assert_eq!(attributes::find("disksize").unwrap().show(&server.disk).unwrap(), size);
    }
}

#[test]
fn an_export_is_watched_after_a_partial_end_until_it_is_complete() {
    let end = Arc::new(Mutex::new(None));
    let export = NoExport { users: Default::default(), gate: None, end: end.clone() };
    let (server, _folder) = server(&Default::default());
    let mut watch = EndWatch::new(&export, server.dir.name());
    let mut interval_after = |is_complete: Option<bool>| {
        *end.lock().unwrap() = is_complete.map(|is_complete| SessionEnd {
            reason: "a test says so".into(),
            is_failure: true,
            is_complete,
        });
        watch.check();
        watch.interval().is_some()
    };
    assert!(!interval_after(None));
    assert!(interval_after(Some(false)));
    assert!(interval_after(Some(false)));
    assert!(!interval_after(Some(true)));
    assert!(!interval_after(Some(true)));
}

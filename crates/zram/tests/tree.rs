//! The tree over disks that a mock pretends to have, through a real mount.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_fuse::{OwnedMount, free_directory, mount_here};
use pagefold_sys::fusedev;
use pagefold_testkit::skipped;
use pagefold_zram::disks::{ClassReport, Disks, Errno};
use pagefold_zram::tree::{self, Sysfs};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Disks that remember what was written to them. Disk N has the device `/dev/loop{N + 5}`.
#[derive(Default)]
struct MockDisks {
    written: Mutex<BTreeMap<u32, Vec<(String, String)>>>,
    reads: Mutex<u32>,
    /// A write of `writeback` waits for a message.
    slow: Mutex<Option<Receiver<()>>>,
}

impl MockDisks {
    fn check(&self, number: u32) -> Result<(), Errno> {
        let known = self.written.lock().unwrap().contains_key(&number);
        known.then_some(()).ok_or(Errno(libc::ENODEV))
    }
}

impl Disks for MockDisks {
    fn numbers(&self) -> Result<Vec<u32>, Errno> {
        Ok(self.written.lock().unwrap().keys().copied().collect())
    }

    fn device(&self, number: u32) -> Result<PathBuf, Errno> {
        self.check(number)?;
        Ok(format!("/dev/loop{}", number + 5).into())
    }

    fn read(&self, number: u32, attribute: &str) -> Result<String, Errno> {
        self.check(number)?;
        let mut reads = self.reads.lock().unwrap();
        *reads += 1;
        match attribute {
            "recomp_algorithm" => Ok("x".repeat(10_000)),
            "backing_dev" => Err(Errno(libc::ENOMEM)),
            // Disk 1 has no size.
            "initstate" => Ok(u32::from(number != 1).to_string()),
            _ => Ok(format!("{attribute} {number} {reads}")),
        }
    }

    fn write(&self, number: u32, attribute: &str, text: &str) -> Result<(), Errno> {
        self.check(number)?;
        if attribute == "writeback" {
            let slow = self.slow.lock().unwrap().take();
            if let Some(slow) = slow {
                slow.recv().unwrap();
            }
        }
        if text.starts_with("bad") {
            return Err(Errno(libc::E2BIG));
        }
        let mut written = self.written.lock().unwrap();
        written.get_mut(&number).unwrap().push((attribute.to_string(), text.to_string()));
        Ok(())
    }

    /// Three pieces, of which the second is empty.
    fn block_state(&self, number: u32, first: u64) -> Result<(String, Option<u64>), Errno> {
        self.check(number)?;
        match first {
            0 => Ok(("state\n".repeat(2000), Some(1000))),
            1000 => Ok((String::new(), Some(2000))),
            2000 => Ok((format!("last of {number}\n"), None)),
            _ => Err(Errno(libc::ERANGE)),
        }
    }

    fn classes(&self, number: u32) -> Result<Vec<ClassReport>, Errno> {
        self.check(number)?;
        Ok(vec![ClassReport { size_bytes: 64, objects: 3, pages: 1, unused_bytes: 3904 }])
    }

    fn hot_add(&self) -> Result<u32, Errno> {
        let mut written = self.written.lock().unwrap();
        let number = (0..).find(|n| !written.contains_key(n)).unwrap();
        written.insert(number, Vec::new());
        Ok(number)
    }

    fn hot_remove(&self, number: u32) -> Result<(), Errno> {
        if number == 1 {
            return Err(Errno(libc::EBUSY));
        }
        self.written.lock().unwrap().remove(&number).map(drop).ok_or(Errno(libc::ENODEV))
    }
}

/// A mounted tree over a directory that looks like sysfs.
struct Mounted {
    disks: Arc<MockDisks>,
    // Unmounted before its directory is removed.
    _mount: Box<dyn OwnedMount>,
    dir: TempDir,
}

impl Mounted {
    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }

    fn written(&self, number: u32) -> Vec<(String, String)> {
        self.disks.written.lock().unwrap()[&number].clone()
    }
}

/// `None`, with a message, if this machine does not let the test mount.
fn mounted(test: &str) -> Option<Mounted> {
    let dir = tempfile::tempdir().unwrap();
    let real = dir.path().join("sys");
    for i in [5, 6] {
        let disk = real.join(format!("devices/virtual/block/loop{i}"));
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::write(disk.join("size"), "8\n").unwrap();
        fs::write(disk.join("disksize"), "not ours\n").unwrap();
        std::os::unix::fs::symlink("../../../../class/block", disk.join("subsystem")).unwrap();
    }
    fs::create_dir(real.join("block")).unwrap();
    for (name, target) in [("vda", "../devices/pci/vda"), ("zram0", "../devices/virtual/block/zram0")] {
        std::os::unix::fs::symlink(target, real.join("block").join(name)).unwrap();
    }
    fs::create_dir_all(real.join("kernel/debug/zram")).unwrap();
    fs::write(real.join("kernel/debug/tracing_on"), "1\n").unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let disks = Arc::new(MockDisks::default());
    let sysfs = Sysfs { links_to: real.clone(), real };
    let mounted = free_directory(&dir.path().join("tree"));
    match mounted.and_then(|path| mount_here(path, &tree::request())) {
        Ok((channel, mount)) => {
            tree::serve(disks.clone(), sysfs, channel, &fusedev::open).unwrap();
            Some(Mounted { disks, _mount: mount, dir })
        }
        Err(e) => {
            skipped!("{test}: {e}");
            None
        }
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Opens as a shell's `>` does, and writes once.
fn store(path: &Path, data: &[u8]) -> std::io::Result<usize> {
    OpenOptions::new().write(true).create(true).truncate(true).open(path)?.write(data)
}

#[test]
fn reading_hot_add_creates_one_device_and_hot_remove_removes_it() {
    let Some(tree) = mounted("reading_hot_add_creates_one_device_and_hot_remove_removes_it") else { return };
    let add = tree.path("class/zram-control/hot_add");
    // This reads until the end of the file, which is a second read.
    assert_eq!(fs::read_to_string(&add).unwrap(), "0\n");
    assert_eq!(fs::read_to_string(&add).unwrap(), "1\n");
    let file = File::open(&add).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.read_exact_at(&mut byte, 1).unwrap();
    assert_eq!(byte, *b"\n");
    assert_eq!(tree.disks.numbers().unwrap(), [0, 1, 2]);

    let remove = tree.path("class/zram-control/hot_remove");
    assert_eq!(store(&remove, b"0\n").unwrap(), 2);
    assert!(!tree.path("zram0").exists() && !tree.path("block/zram0").exists());
    assert_eq!(errno(store(&remove, b"0")), libc::ENODEV);
    assert_eq!(errno(store(&remove, b"1")), libc::EBUSY);
    assert_eq!(errno(store(&remove, b"-1")), libc::EINVAL);
    assert_eq!(errno(store(&remove, b"one")), libc::EINVAL);
    assert_eq!(errno(store(&remove, b"99999999999")), libc::ERANGE);
}

#[test]
fn a_read_from_the_beginning_takes_a_snapshot_that_later_reads_continue() {
    let Some(tree) = mounted("a_read_from_the_beginning_takes_a_snapshot_that_later_reads_continue") else {
        return;
    };
    tree.disks.hot_add().unwrap();
    let mut file = File::open(tree.path("zram0/mm_stat")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "mm_stat 0 1\n");
    let mut part = [0; 4];
    file.read_exact_at(&mut part, 8).unwrap();
    assert_eq!(&part, b"0 1\n");
    file.read_exact_at(&mut part, 0).unwrap();
    file.read_exact_at(&mut part, 8).unwrap();
    assert_eq!(&part, b"0 2\n");
    let long = fs::read(tree.path("zram0/recomp_algorithm")).unwrap();
    assert_eq!(long.len(), 10_001);
    assert_eq!(errno(fs::read(tree.path("zram0/backing_dev"))), libc::ENOMEM);
    assert_eq!(fs::metadata(tree.path("zram0/mm_stat")).unwrap().len(), 4096);
}

#[test]
fn each_write_is_one_store_of_a_page_at_most() {
    let Some(tree) = mounted("each_write_is_one_store_of_a_page_at_most") else { return };
    tree.disks.hot_add().unwrap();
    let path = tree.path("block/zram0/mem_limit").canonicalize();
    assert!(path.is_ok_and(|p| p.ends_with("devices/virtual/block/loop5/mem_limit")));
    let path = tree.path("zram0/mem_limit");
    assert_eq!(store(&path, b"1G\n").unwrap(), 3);
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    assert_eq!(file.write(b"2G\n").unwrap(), 3);
    assert_eq!(file.write(b"3G\n\0rest").unwrap(), 8);
    assert_eq!(file.write(&[b'7'; 5000]).unwrap(), 4096);
    let texts: Vec<_> = tree.written(0).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["1G\n", "2G\n", "3G\n", &"7".repeat(4096)]);
    assert_eq!(errno(file.write(b"bad")), libc::E2BIG);
    assert_eq!(errno(file.write(b"\xff")), libc::EINVAL);
    drop(file);
    tree.disks.hot_remove(0).unwrap();
    assert_eq!(errno(store(&path, b"1")), libc::ENOENT);
}

#[test]
fn modes_bind_root_too_and_nothing_can_be_created_or_removed() {
    let Some(tree) = mounted("modes_bind_root_too_and_nothing_can_be_created_or_removed") else { return };
    tree.disks.hot_add().unwrap();
    let mode = |path: &str| fs::metadata(tree.path(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("zram0/reset"), mode("zram0/mm_stat")), (0o200, 0o444));
    assert_eq!((mode("zram0/disksize"), mode("class/zram-control/hot_add")), (0o644, 0o400));
    assert_eq!(errno(store(&tree.path("zram0/mm_stat"), b"1")), libc::EACCES);
    assert_eq!(errno(File::open(tree.path("zram0/reset"))), libc::EACCES);
    assert_eq!(errno(File::open(tree.path("class/zram-control/hot_remove"))), libc::EACCES);
    assert_eq!(errno(store(&tree.path("class/zram-control/hot_add"), b"1")), libc::EACCES);

    assert_eq!(errno(File::open(tree.path("zram0/nothing"))), libc::ENOENT);
    assert_eq!(errno(store(&tree.path("zram0/nothing"), b"1")), libc::EACCES);
    assert_eq!(errno(fs::create_dir(tree.path("zram0/new"))), libc::EPERM);
    assert_eq!(errno(fs::remove_file(tree.path("zram0/mm_stat"))), libc::EPERM);
    assert_eq!(errno(fs::remove_dir(tree.path("block"))), libc::EPERM);
    assert_eq!(errno(fs::rename(tree.path("block"), tree.path("block2"))), libc::EPERM);
    let mode = fs::Permissions::from_mode(0o666);
    assert_eq!(errno(fs::set_permissions(tree.path("zram0/mm_stat"), mode)), libc::EPERM);
    assert!(tree.written(0).is_empty());
}

#[test]
fn directories_list_disks_and_what_sysfs_has() {
    let Some(tree) = mounted("directories_list_disks_and_what_sysfs_has") else { return };
    let list = |path: &str| {
        let entries = fs::read_dir(tree.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    // The kernel's own zram0 is hidden.
    assert_eq!(list("block"), ["vda"]);
    assert!(!tree.path("block/zram0").is_symlink());
    tree.disks.hot_add().unwrap();
    tree.disks.hot_add().unwrap();
    assert_eq!(list(""), ["block", "class", "devices", "kernel", "zram0", "zram1"]);
    assert_eq!(list("block"), ["vda", "zram0", "zram1"]);
    assert_eq!(list("devices/virtual/block"), ["loop5", "loop6"]);
    let link = |name: &str| fs::read_link(tree.path(name)).unwrap();
    assert_eq!(link("block/zram1"), Path::new("../devices/virtual/block/loop6"));
    assert_eq!(link("block/vda"), Path::new("../devices/pci/vda"));

    let files = list("zram0");
    assert_eq!(files.iter().filter(|name| *name == "disksize").count(), 1);
    assert!(files.contains(&"size".to_string()) && files.contains(&"queue".to_string()));
    assert_eq!(fs::read_to_string(tree.path("zram0/size")).unwrap(), "8\n");
    // A link of sysfs leads where it leads there, and its target has the same name.
    assert_eq!(link("zram0/subsystem"), tree.dir.path().join("sys/class/block"));
    assert!(tree.path("zram1/queue").is_dir());
    assert_eq!(fs::read_to_string(tree.path("zram0/disksize")).unwrap(), "disksize 0 1\n");
}

/// A long directory is read by several requests. Block devices that come and go between them shift no other entry.
#[test]
fn a_directory_that_changes_while_it_is_read_shows_no_entry_twice() {
    let Some(tree) = mounted("a_directory_that_changes_while_it_is_read_shows_no_entry_twice") else {
        return;
    };
    for _ in 0..400 {
        tree.disks.hot_add().unwrap();
    }
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    for path in ["block", "", "devices/virtual/block"] {
        (2..12).for_each(|number| tree.disks.hot_remove(number).unwrap());
        let mut entries = fs::read_dir(tree.path(path)).unwrap();
        let mut seen: Vec<_> = entries.by_ref().take(20).map(name).collect();
        // The first request has returned many entries. Others appear before them.
        (2..12).for_each(|_| _ = tree.disks.hot_add().unwrap());
        seen.extend(entries.map(name));
        let stayed = seen.iter().filter(|name| name.starts_with("zram") || name.starts_with("loop"));
        assert!(stayed.count() >= 390, "{path:?}: {seen:?}");
        seen.sort();
        let count = seen.len();
        seen.dedup();
        assert_eq!(seen.len(), count, "{path:?}");
    }
}

#[test]
fn debugfs_has_the_states_of_pages_and_the_classes_of_pools() {
    let Some(tree) = mounted("debugfs_has_the_states_of_pages_and_the_classes_of_pools") else { return };
    let list = |path: &str| {
        let entries = fs::read_dir(tree.path(path)).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(list("kernel/debug"), ["tracing_on", "zram", "zsmalloc"]);
    assert_eq!((list("kernel/debug/zram").len(), list("kernel/debug/zsmalloc").len()), (0, 0));
    for _ in 0..2 {
        tree.disks.hot_add().unwrap();
    }
    assert_eq!(list("kernel/debug/zram"), ["zram0", "zram1"]);
    assert_eq!(list("kernel/debug/zsmalloc"), ["zram0"]);
    assert_eq!(
        (list("kernel/debug/zram/zram1"), list("kernel/debug/zsmalloc/zram0")),
        (vec!["block_state".into()], vec!["classes".into()])
    );
    assert_eq!(errno(fs::read_dir(tree.path("kernel/debug/zsmalloc/zram1"))), libc::ENOENT);
    assert_eq!(fs::read_to_string(tree.path("kernel/debug/tracing_on")).unwrap(), "1\n");

    let states = tree.path("kernel/debug/zram/zram1/block_state");
    assert_eq!(fs::read_to_string(&states).unwrap(), "state\n".repeat(2000) + "last of 1\n");
    let file = File::open(&states).unwrap();
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, 0).unwrap();
    file.read_exact_at(&mut bytes, 8).unwrap();
    assert_eq!(bytes, *b"ate\nstat");
    assert_eq!(errno(file.read_at(&mut bytes, 8)), libc::EINVAL);
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, *b"state\nst");

    let classes = tree.path("kernel/debug/zsmalloc/zram0/classes");
    let text = fs::read_to_string(&classes).unwrap();
    assert!(text.starts_with(" class  size       10% ") && text.contains("\n     8    64 "), "{text}");
    let mode = |path: &str| fs::metadata(tree.path(path)).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode("kernel/debug"), 0o700);
    assert_eq!(
        (mode("kernel/debug/zram/zram1/block_state"), mode("kernel/debug/zsmalloc/zram0/classes")),
        (0o400, 0o444)
    );
    for path in [states, classes] {
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(errno(store(&path, b"1")), libc::EINVAL);
    }
}

#[test]
fn slow_stores_do_not_block_other_requests() {
    let Some(tree) = mounted("slow_stores_do_not_block_other_requests") else { return };
    tree.disks.hot_add().unwrap();
    let writeback = tree.path("zram0/writeback");
    // More than there are session threads.
    let writers: Vec<(Sender<()>, _)> = (0..9)
        .map(|_| {
            let (finish, slow) = channel();
            *tree.disks.slow.lock().unwrap() = Some(slow);
            let path = writeback.clone();
            // Without O_TRUNC, for which the kernel waits until all writes to the file have ended.
            let write = move || OpenOptions::new().write(true).open(&path)?.write(b"idle");
            let writer = std::thread::spawn(write);
            let deadline = Instant::now() + Duration::from_secs(60);
            while tree.disks.slow.lock().unwrap().is_some() {
                assert!(Instant::now() < deadline, "a write waits for another");
                std::thread::sleep(Duration::from_millis(1));
            }
            (finish, writer)
        })
        .collect();
    assert_eq!(fs::read_to_string(tree.path("zram0/mm_stat")).unwrap(), "mm_stat 0 1\n");
    assert_eq!(store(&tree.path("zram0/idle"), b"all").unwrap(), 3);
    assert_eq!(tree.written(0).len(), 1);
    for (finish, writer) in writers {
        finish.send(()).unwrap();
        assert_eq!(writer.join().unwrap().unwrap(), 4);
    }
    assert_eq!(tree.written(0).len(), 10);
}

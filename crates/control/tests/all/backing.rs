//! `open_backing`: which files and devices it accepts, and how it refuses others.

use crate::devices::{LoopDevice, sparse_file};
use pagefold_backing::{Backing, Buffers, Demand, FileBacking, Operation, Request};
use pagefold_control::backing::{OpenError, OpenOptions, Opened, open_backing};
use rustix::fs::{FileType, Mode};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use tempfile::TempDir;

const OPTIONS: OpenOptions =
    OpenOptions { size_bytes: Some(3 << 20), min_bytes: 1 << 20, magic: *b"OURMAGIC", force: false };

fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn refused(path: &Path, options: &OpenOptions) -> OpenError {
    open_backing(path, options).unwrap_err()
}

/// A file of `len_bytes`, zero but for `data` at `offset`.
fn file_with(folder: &TempDir, len_bytes: u64, offset: u64, data: &[u8]) -> std::path::PathBuf {
    let path = folder.path().join("backing");
    let file = File::create(&path).unwrap();
    file.set_len(len_bytes).unwrap();
    file.write_all_at(data, offset).unwrap();
    path
}

#[test]
fn a_new_file_is_sparse_private_and_of_the_requested_size() {
    let folder = folder();
    let path = folder.path().join("new");
    assert!(matches!(refused(&path, &OpenOptions { size_bytes: None, ..OPTIONS }), OpenError::NoSize { .. }));
    let small = OpenOptions { size_bytes: Some(4096), ..OPTIONS };
    assert!(matches!(refused(&path, &small), OpenError::TooSmall { len_bytes: 4096, .. }));
    assert!(!path.exists());

    let Opened { file, created, len_bytes, is_block_device, .. } = open_backing(&path, &OPTIONS).unwrap();
    assert_eq!((created, len_bytes, is_block_device), (true, 3 << 20, false));
    let meta = file.metadata().unwrap();
    assert_eq!((meta.len(), meta.blocks(), meta.mode() & 0o777), (3 << 20, 0, 0o600));
    drop(file);
    // A file of zeroes is accepted again. The requested size applies to new files only.
    let again = open_backing(&path, &OpenOptions { size_bytes: Some(9 << 20), ..OPTIONS }).unwrap();
    assert_eq!((again.created, again.len_bytes), (false, 3 << 20));
}

#[test]
fn a_file_that_cannot_be_resized_is_removed() {
    let folder = folder();
    let path = folder.path().join("huge");
    for size_bytes in [u64::MAX, i64::MAX as u64] {
        let error = refused(&path, &OpenOptions { size_bytes: Some(size_bytes), ..OPTIONS });
        assert!(matches!(error, OpenError::TooLarge { .. }), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn a_file_with_other_data_is_refused_unless_forced() {
    let folder = folder();
    let force = OpenOptions { force: true, ..OPTIONS };
    for offset in [0, 1, 4096, (1 << 20) - 1] {
        let path = file_with(&folder, 2 << 20, offset, b"x");
        assert!(matches!(refused(&path, &OPTIONS), OpenError::HoldsSomething { .. }), "{offset}");
        let opened = open_backing(&path, &force).unwrap();
        // `force` alone overwrites nothing.
        let mut byte = [0];
        opened.file.read_exact_at(&mut byte, offset).unwrap();
        assert_eq!(byte, *b"x");
    }
    assert!(open_backing(&file_with(&folder, 2 << 20, 1 << 20, b"x"), &OPTIONS).is_ok());
    assert!(open_backing(&file_with(&folder, 2 << 20, 0, b"OURMAGIC and more"), &OPTIONS).is_ok());
    let small = file_with(&folder, (1 << 20) - 1, 0, b"");
    assert!(matches!(refused(&small, &force), OpenError::TooSmall { .. }));
}

#[test]
fn a_duplicate_of_the_descriptor_keeps_the_lock() {
    let folder = folder();
    let path = folder.path().join("backing");
    let opened = open_backing(&path, &OPTIONS).unwrap();
    let passed = opened.file.as_fd().try_clone_to_owned().unwrap();
    drop(opened);
    let force = OpenOptions { force: true, ..OPTIONS };
    let error = refused(&path, &force);
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().contains("another pagefold disk"));
    drop(passed);
    assert!(open_backing(&path, &force).is_ok());
}

/// A ring holds a reference to the file, and the kernel tears a ring down only some time after it is closed.
#[test]
fn a_backing_can_be_opened_again_as_soon_as_its_queues_are_dropped() {
    let folder = folder();
    let path = folder.path().join("backing");
    let buffers = Buffers::new(1 << 20).unwrap();
    for _ in 0..100 {
        let backing =
            FileBacking::new(open_backing(&path, &OPTIONS).unwrap().file, Default::default()).unwrap();
        let mut queue = backing.queue(8, &buffers).unwrap();
        for id in 0..8 {
            let buf = buffers.get(4096, Demand::Required).unwrap();
            let operation = Operation::Read;
            queue.submit(Request { id, operation, offset: id * 4096, buf, len_bytes: 4096 }).unwrap();
        }
        queue.start();
    }
}

#[test]
fn other_file_types_are_refused_and_the_error_names_the_type() {
    let folder = folder();
    let force = OpenOptions { force: true, ..OPTIONS };
    let target = file_with(&folder, 2 << 20, 0, b"");
    let (link, dangling, pipe) =
        (folder.path().join("link"), folder.path().join("dangling"), folder.path().join("pipe"));
    symlink(&target, &link).unwrap();
    symlink(folder.path().join("nothing"), &dangling).unwrap();
    match refused(&link, &force) {
        OpenError::SymbolicLink { target: reported, .. } => {
            assert_eq!(reported, target.canonicalize().unwrap())
        }
        other => panic!("{other}"),
    }
    assert!(matches!(refused(&dangling, &force), OpenError::SymbolicLink { .. }));
    assert!(!folder.path().join("nothing").exists());
    // Not with the program mkfifo: a child between fork and exec would hold the locks of other tests.
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
    let socket = folder.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let others = [
        (pipe.as_path(), "pipe"),
        (folder.path(), "folder"),
        (socket.as_path(), "socket"),
        (Path::new("/dev/null"), "character device"),
        (Path::new("/dev/zero"), "character device"),
    ];
    for (path, name) in others {
        let error = refused(path, &force);
        assert!(matches!(error, OpenError::WrongType { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Links such as those in /dev/disk.
#[test]
fn a_link_to_a_block_device_is_followed() {
    let folder = folder();
    const NAME: &str = "a_link_to_a_block_device_is_followed";
    let Some(device) = LoopDevice::attach(NAME, &sparse_file(2 << 20)) else { return };
    let (link, second) = (folder.path().join("by-id"), folder.path().join("by-label"));
    symlink(&device.0.path, &link).unwrap();
    symlink("by-id", &second).unwrap();
    for name in [&link, &second] {
        let opened = open_backing(name, &OPTIONS).unwrap();
        assert!(opened.is_block_device && !opened.created);
        assert_eq!(opened.path, device.0.path);
        assert!(matches!(refused(name, &OPTIONS), OpenError::Claimed { .. }));
    }
    // A link that another user made, in a folder such as /tmp, is not followed; neither is one that leads to it, or through
    // a folder of its target.
    const NOBODY: u32 = 65534;
    let (shared, through) = (folder.path().join("shared"), folder.path().join("through"));
    symlink("/dev", &shared).unwrap();
    symlink(Path::new("shared").join(device.0.path.file_name().unwrap()), &through).unwrap();
    assert_eq!(open_backing(&through, &OPTIONS).unwrap().path, device.0.path);
    std::os::unix::fs::lchown(&link, Some(NOBODY), None).unwrap();
    std::os::unix::fs::lchown(&shared, Some(NOBODY), None).unwrap();
    for name in [&link, &second, &through] {
        assert!(matches!(refused(name, &OPTIONS), OpenError::SymbolicLink { .. }), "{name:?}");
    }
}

#[test]
fn a_file_of_another_user_is_accepted_only_with_force() {
    let folder = folder();
    let path = file_with(&folder, 2 << 20, 0, b"");
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        pagefold_testkit::skipped!("a_file_of_another_user_is_accepted_only_with_force: needs root");
        return;
    }
    match refused(&path, &OPTIONS) {
        OpenError::NotYours { owner, .. } => assert_eq!(owner, 65534),
        other => panic!("{other}"),
    }
    assert!(open_backing(&path, &OpenOptions { force: true, ..OPTIONS }).is_ok());
}

#[test]
fn a_file_is_not_made_in_a_folder_that_is_missing() {
    let folder = folder();
    let error = refused(&folder.path().join("no/file"), &OPTIONS);
    assert!(matches!(error, OpenError::NoFolder { .. }), "{error}");
    assert!(error.to_string().contains(&folder.path().join("no").display().to_string()), "{error}");
}

/// Opens the file in a thread with the user id of nobody, as root may write to any file.
#[test]
fn a_file_that_may_not_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let path = file_with(&folder, 2 << 20, 0, b"");
    let open_as_nobody = |mode| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let opened = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                const NOBODY: libc::uid_t = 65534;
                // SAFETY: the raw call takes three numbers and changes the identity of this thread only, which ends
                // right after. It fails if the test does not run as root, and is not needed then.
                unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
                open_backing(&path, &OPTIONS)
            });
            thread.join().unwrap()
        });
        opened.map(|_| ())
    };
    match open_as_nobody(0o444) {
        Err(OpenError::NotWritable { errno, .. }) => assert_eq!(errno, libc::EACCES),
        other => panic!("{other:?}"),
    }
    if is_root() {
        open_as_nobody(0o666).unwrap();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

#[test]
fn a_block_device_is_opened_exclusively() {
    const NAME: &str = "a_block_device_is_opened_exclusively";
    let Some(device) = LoopDevice::attach(NAME, &sparse_file(2 << 20)) else { return };
    let path = &device.0.path;
    let opened = open_backing(path, &OPTIONS).unwrap();
    assert_eq!((opened.created, opened.is_block_device, opened.len_bytes), (false, true, 2 << 20));
    let force = OpenOptions { force: true, ..OPTIONS };
    let error = refused(path, &force);
    assert!(matches!(error, OpenError::Claimed { .. }), "{error}");
    opened.file.write_all_at(b"something", 512).unwrap();
    drop(opened);
    assert!(matches!(refused(path, &OPTIONS), OpenError::HoldsSomething { .. }));
    assert!(open_backing(path, &force).is_ok());
    let large = OpenOptions { min_bytes: 4 << 20, ..force };
    assert!(matches!(refused(path, &large), OpenError::TooSmall { .. }));
}

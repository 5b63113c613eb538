//! The cache on disk: what is not fetched again, and that no fault of the disk fails a read.

use super::cache_checker::check;
use super::*;
use pagefold_remote::cache::{Cache, CacheStats, CacheUse, Key, MIN_SIZE_BYTES};
use pagefold_testkit::skipped;
use server::Fault;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// Opens the cache in a folder as one more process would.
pub fn cache(folder: &Path) -> Arc<Cache> {
    Cache::open(folder, MIN_SIZE_BYTES, Box::new(|_| ())).unwrap()
}

fn with(cache: &Arc<Cache>, content: Option<Key>) -> Options {
    let is_verified = content.is_some();
    let cache = Some(CacheUse { cache: cache.clone(), content });
    Options { cache, is_verified, ..options(10_000) }
}

fn open_cached(server: &Server, folder: &TempDir) -> RemoteSource {
    open_with(server, with(&cache(folder.path()), None)).unwrap()
}

#[test]
fn a_second_source_asks_for_the_version_only() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let first = open_cached(&server, &folder);
    read(&first, 2 * BLOCK + 5, 3 * BLOCK).unwrap();
    let asked = server.take_log().len();
    assert_eq!(check(folder.path(), &contents(0)), 5);
    // While the first is open, and after it.
    for _ in 0..2 {
        server.take_log();
        let second = open_cached(&server, &folder);
        read(&second, 2 * BLOCK, 4 * BLOCK).unwrap();
        assert_eq!(server.take_log().len(), 1);
        read(&second, 0, LEN).unwrap();
    }
    assert!(asked == 2 && check(folder.path(), &contents(0)) == 10);
    drop(first);
    let third = open_cached(&server, &folder);
    server.take_log();
    read(&third, 0, LEN).unwrap();
    assert_eq!(server.take_log().len(), 0);
}

#[test]
fn another_version_of_the_object_has_other_blocks() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    read(&open_cached(&server, &folder), 0, LEN).unwrap();
    server.put(PATH, Object::new(contents(1), "v1"));
    let source = open_cached(&server, &folder);
    let mut buf = vec![0; LEN as usize];
    source.read_at(0, &mut buf).unwrap();
    assert!(buf == contents(1));
    // A server that names two contents alike: the first block tells them apart.
    server.put(PATH, Object::new(contents(2), "v1"));
    open_cached(&server, &folder).read_at(0, &mut buf).unwrap();
    assert!(buf == contents(2));
    server.put(PATH, Object::new(contents(0), "v0"));
    server.take_log();
    read(&open_cached(&server, &folder), 0, LEN).unwrap();
    assert_eq!(server.take_log().len(), 1);
}

/// Two objects that a server tells apart by the query alone, with one name of their versions and one beginning.
#[test]
fn a_query_chooses_an_object_and_a_signature_does_not() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let objects: Vec<_> = (0..2_u8)
        .map(|n| {
            let mut bytes = contents(0);
            bytes[BLOCK as usize..].iter_mut().for_each(|byte| *byte ^= n);
            bytes
        })
        .collect();
    let open = |query: &str| {
        let url = Url::parse(&server.url(&format!("{PATH}?{query}"))).unwrap();
        RemoteSource::open(&url, with(&cache(folder.path()), None)).unwrap()
    };
    for (n, bytes) in objects.iter().enumerate() {
        for signature in ["", "&X-Amz-Signature=1", "&X-Amz-Signature=2"] {
            server.put(&format!("{PATH}?v={n}{signature}"), Object::new(bytes.clone(), "v0"));
        }
    }
    for (query, is_cached) in
        [("v=0", false), ("v=1", false), ("v=1&X-Amz-Signature=1", true), ("v=0&X-Amz-Signature=2", true)]
    {
        let source = open(query);
        server.take_log();
        let mut buf = vec![0; LEN as usize];
        source.read_at(0, &mut buf).unwrap();
        assert!(buf == objects[usize::from(query.starts_with("v=1"))], "{query}");
        assert_eq!(server.take_log().is_empty(), is_cached, "{query}");
    }
}

/// Files of reproducible builds all have one time.
#[test]
fn an_object_without_a_strong_entity_tag_is_not_cached() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let last_modified = Some("Thu, 01 Jan 1970 00:00:01 GMT".to_string());
    for version in 0..2_u8 {
        let mut bytes = contents(0);
        bytes[BLOCK as usize..].iter_mut().for_each(|byte| *byte ^= version);
        let object =
            Object { last_modified: last_modified.clone(), etag: None, bytes: Arc::new(bytes.clone()) };
        server.put(PATH, object);
        let source = open_cached(&server, &folder);
        let mut buf = vec![0; LEN as usize];
        source.read_at(0, &mut buf).unwrap();
        assert!(buf == bytes, "version {version}");
    }
    assert_eq!(check(folder.path(), &contents(0)), 0);
}

#[test]
fn an_object_with_a_digest_is_opened_without_a_request() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let key = Some(Key::of_digest("image", "sha256:00", ""));
    let open = || open_with(&server, with(&cache(folder.path()), key)).unwrap();
    let first = open();
    read(&first, 0, 4 * BLOCK).unwrap();
    assert!(!first.is_from_cache());
    server.take_log();
    server.fail(|_| Fault::Status(404, None));
    let second = open();
    assert!(second.is_from_cache() && second.len_bytes() == LEN);
    read(&second, BLOCK / 2, 3 * BLOCK).unwrap();
    assert_eq!(server.take_log().len(), 0);
    // The rest is fetched.
    server.fail(|_| Fault::None);
    read(&second, 0, LEN).unwrap();
    // Bytes that the caller proves wrong are fetched again.
    assert!(second.discard_cached(5 * BLOCK + 1, BLOCK));
    server.take_log();
    read(&second, 5 * BLOCK, 1).unwrap();
    assert_eq!(server.take_log().len(), 1);
    // An object of another length under the same digest is noticed.
    server.put(PATH, Object::new(contents(0)[..100_000].to_vec(), "v0"));
    assert!(second.discard_cached(0, LEN));
    assert!(matches!(read(&second, 5 * BLOCK, 1), Err(BackingError::Mismatch { .. })));
}

#[test]
fn sources_that_read_at_once_fetch_each_block_once() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    server.fail(|_| Fault::Late(Duration::from_millis(20)));
    // Each has its own open files, as a process does.
    let sources: Vec<_> = (0..4).map(|_| open_cached(&server, &folder)).collect();
    server.take_log();
    std::thread::scope(|scope| {
        for source in &sources {
            scope.spawn(|| {
                for block in 0..LEN.div_ceil(BLOCK) {
                    read(source, block * BLOCK, BLOCK.min(LEN - block * BLOCK)).unwrap();
                }
            });
        }
    });
    let mut asked: Vec<_> = server.take_log().iter().map(|request| request.range().unwrap()).collect();
    asked.sort_unstable();
    let blocks: u64 = asked.iter().map(|(first, last)| (last - first) / BLOCK + 1).sum();
    assert_eq!(blocks, LEN.div_ceil(BLOCK) - 1, "{asked:?}");
}

#[test]
fn damaged_files_cost_requests_and_no_read_fails() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    read(&open_cached(&server, &folder), 0, LEN).unwrap();
    let path = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let path = path.into_iter().find(|path| path.extension().is_some()).unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in [0, 20, 30, 4096, 4096 + 256, 4096 + 300, 8192 + 5, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&path, &damaged).unwrap();
        read(&open_cached(&server, &folder), 0, LEN).unwrap();
        assert_eq!(check(folder.path(), &contents(0)), 10, "byte {at}");
    }
    for len in [0, 1, 79, 80, 4096, 5000, 8192, 100_000] {
        std::fs::write(&path, &whole[..len]).unwrap();
        read(&open_cached(&server, &folder), 0, LEN).unwrap();
        assert_eq!(check(folder.path(), &contents(0)), 10, "{len} bytes");
    }
}

#[test]
fn a_folder_that_goes_away_costs_requests_and_says_so_once() {
    let (server, folder) = (server(), tempfile::tempdir().unwrap());
    let inner = folder.path().join("cache");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let said = lines.clone();
    let report = Box::new(move |text: &str| said.lock().unwrap().push(text.to_string()));
    let cache = Cache::open(&inner, MIN_SIZE_BYTES, report).unwrap();
    let source = open_with(&server, with(&cache, None)).unwrap();
    std::fs::remove_dir_all(&inner).unwrap();
    read(&source, 0, LEN).unwrap();
    read(&open_with(&server, with(&cache, None)).unwrap(), 0, LEN).unwrap();
    let error = cache.stats().error.unwrap();
    assert!(error.contains("No such file"), "{error}");
    assert_eq!(lines.lock().unwrap().len(), 1);
    // A folder that is a file, or is not private, is refused.
    std::fs::write(&inner, "").unwrap();
    assert!(Cache::open(&inner, MIN_SIZE_BYTES, Box::new(|_| ())).is_err());
}

/// A small file system, which is unmounted when dropped.
struct Mounted(TempDir);

impl Mounted {
    fn tmpfs(test: &str, size: &str) -> Option<Self> {
        use rustix::mount::{MountFlags, mount};
        let dir = tempfile::tempdir().unwrap();
        let data = std::ffi::CString::new(format!("size={size},mode=0700")).unwrap();
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), Some(data.as_c_str())) {
            Ok(()) => Some(Mounted(dir)),
            Err(e) => {
                skipped!("{test}: mounting a tmpfs: {e}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Reads all of an object by a new source, and returns the counters of its cache.
fn read_through(server: &Server, folder: &Path, right: &[u8], is_backwards: bool) -> CacheStats {
    let cache = cache(folder);
    let source = open_with(server, with(&cache, None)).unwrap();
    let mut pieces: Vec<_> = (0..).step_by(50_000).zip(right.chunks(50_000)).collect();
    if is_backwards {
        pieces.reverse();
    }
    for (at, right) in pieces {
        let mut buf = vec![0; right.len()];
        source.read_at(at, &mut buf).unwrap();
        assert!(buf == right);
    }
    cache.stats()
}

fn free_bytes(folder: &Path) -> u64 {
    let space = rustix::fs::statvfs(folder).unwrap();
    space.f_bavail * space.f_frsize
}

#[test]
fn a_full_disk_costs_requests_and_the_cache_leaves_room_to_others() {
    let test = "a_full_disk_costs_requests_and_the_cache_leaves_room_to_others";
    let Some(disk) = Mounted::tmpfs(test, "8m") else { return };
    let server = Server::start();
    let long = contents(0).repeat(40);
    server.put(PATH, Object::new(long.clone(), "v0"));
    // A file system smaller than the cache, and than the object.
    for round in 0..2 {
        // The blocks that were read last are in the cache, and leave it last. In the same order again, each block could leave before it
        // is read.
        let stats = read_through(&server, disk.0.path(), &long, round == 1);
        assert_eq!((stats.error, stats.hit_blocks > 0), (None, round == 1));
        assert!(free_bytes(disk.0.path()) >= 8 << 17);
        assert!(check(disk.0.path(), &long) >= 64);
    }
    // Others fill it.
    let mut filler = std::fs::File::create(disk.0.path().join("filler")).unwrap();
    while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    server.put(PATH, Object::new(contents(1), "v1"));
    let error = read_through(&server, disk.0.path(), &contents(1), false).error.unwrap();
    assert!(error.contains("No space left"), "{error}");
    // A part of the cache has left for them.
    assert!(free_bytes(disk.0.path()) >= 1 << 19);
    check(disk.0.path(), &long);
}

#[test]
fn a_read_only_disk_is_read_and_not_written() {
    use rustix::mount::{MountFlags, mount_remount};
    let Some(disk) = Mounted::tmpfs("a_read_only_disk_is_read_and_not_written", "8m") else { return };
    let server = server();
    let source = open_with(&server, with(&cache(disk.0.path()), None)).unwrap();
    read(&source, 0, 3 * BLOCK).unwrap();
    drop(source);
    mount_remount(disk.0.path(), MountFlags::RDONLY, c"").unwrap();
    let cache = cache(disk.0.path());
    let source = open_with(&server, with(&cache, None)).unwrap();
    server.take_log();
    read(&source, BLOCK, 2 * BLOCK).unwrap();
    assert_eq!(server.take_log().len(), 0);
    read(&source, 0, LEN).unwrap();
    let error = cache.stats().error.unwrap();
    assert!(error.contains("Read-only file system"), "{error}");
}

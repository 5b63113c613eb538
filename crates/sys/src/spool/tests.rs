use super::*;

#[test]
fn contents_outlive_eviction_and_parts_do_not_overlap() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let page = crate::mem::page_size();
    let mut maps: Vec<_> = (1..=5).map(|pages| spool.map(pages * page).unwrap()).collect();
    assert_eq!(spool.mapped_bytes(), 15 * page as u64);
    for (n, map) in maps.iter_mut().enumerate() {
        assert!(map.bytes(0..map.len_bytes()).iter().all(|byte| *byte == 0));
        map.bytes_mut(0..(n + 1) * page).fill(n as u8 + 1);
    }
    spool.evict();
    for (n, map) in maps.iter().enumerate() {
        assert_eq!(map.len_bytes(), (n + 1) * page);
        assert!(map.bytes(0..map.len_bytes()).iter().all(|byte| *byte == n as u8 + 1));
    }
    drop(maps.remove(2));
    spool.evict();
    assert_eq!(spool.mapped_bytes(), 12 * page as u64);
    assert_eq!(maps[2].bytes(0..1)[0], 4);
}

#[test]
fn a_file_whose_pages_could_be_written_is_right() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let mut map = spool.map(1 << 20).unwrap();
    map.bytes_mut(0..1 << 20).fill(1);
    spool.evict();
    spool.check().unwrap();
    assert!(map.bytes(0..1 << 20).iter().all(|byte| *byte == 1));
}

#[test]
fn evicted_pages_are_not_resident() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let mut map = spool.map(64 << 20).unwrap();
    map.bytes_mut(0..64 << 20).fill(1);
    let before = ResidentFiles::open().unwrap().bytes().unwrap();
    spool.evict();
    let after = ResidentFiles::open().unwrap().bytes().unwrap();
    assert!(before > after + (48 << 20), "{before} {after}");
    assert!(map.bytes(0..64 << 20).iter().all(|byte| *byte == 1));
}

/// Pages of a mapping that are resident, by the kernel's table of pages.
fn resident_pages(map: &Mapping) -> usize {
    const PRESENT: u64 = 1 << 63;
    let page = crate::mem::page_size();
    let mut entries = vec![0; map.len_bytes / page * size_of::<u64>()];
    let at = map.base.as_ptr() as usize / page * size_of::<u64>();
    File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut entries, at as u64).unwrap();
    let entries = entries.chunks_exact(size_of::<u64>());
    entries.filter(|entry| u64::from_ne_bytes((*entry).try_into().unwrap()) & PRESENT != 0).count()
}

#[test]
fn what_is_resident_is_in_windows_that_were_touched() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let page = crate::mem::page_size();
    // Some have windows of more than the kernel's 64 KiB.
    let lens = [page, 64 << 10, 512 << 10, 3 << 20, (16 << 20) + page];
    let mut maps: Vec<_> = lens.iter().map(|len| spool.map(*len).unwrap()).collect();
    maps.iter_mut().for_each(|map| map.bytes_mut(0..map.len_bytes).fill(3));
    let mut state = 1u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..200 {
        if round % 20 == 0 {
            spool.evict();
            assert_eq!(maps.iter().map(resident_pages).sum::<usize>(), 0);
            assert_eq!(spool.touched_bytes(), 0);
        }
        let map = draw(maps.len());
        let start = draw(maps[map].len_bytes);
        let end = (start + 1 + draw(100_000)).min(maps[map].len_bytes);
        if round % 3 == 0 {
            maps[map].bytes_mut(start..end).fill(3);
        } else {
            assert!(maps[map].bytes(start..end).iter().all(|byte| *byte == 3));
        }
        let resident_bytes = (maps.iter().map(resident_pages).sum::<usize>() * page) as u64;
        assert!(resident_bytes > 0 && resident_bytes <= spool.touched_bytes(), "{round}");
        // The windows of the longest mapping have 1 MiB, and those of others are not counted twice.
        assert!(spool.touched_bytes() <= lens.iter().sum::<usize>() as u64 + (2 << 20));
    }
}

#[test]
fn an_eviction_forgets_mappings_that_were_dropped() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let mut map = spool.map(64 << 10).unwrap();
    map.bytes_mut(0..64 << 10).fill(1);
    let addr = map.base.as_ptr();
    drop(map);
    // Memory of another kind gets the address: an eviction must not touch it.
    // SAFETY: the range was unmapped, and MAP_FIXED_NOREPLACE replaces nothing.
    let other = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        libc::mmap(addr.cast(), 64 << 10, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if other != addr.cast() {
        // Another thread's memory is there.
        return;
    }
    // SAFETY: the mapping was made above, and nothing else refers to it.
    let bytes = unsafe { std::slice::from_raw_parts_mut(addr, 64 << 10) };
    bytes.fill(7);
    spool.evict();
    assert!(bytes.iter().all(|byte| *byte == 7));
    // SAFETY: as above; the slice is not used behind this.
    unsafe { libc::munmap(other, 64 << 10) };
}

#[test]
fn the_blocks_of_a_dropped_part_are_used_again() {
    let spool = Spool::in_directory(&std::env::temp_dir()).unwrap();
    let page = crate::mem::page_size();
    let mut first = spool.map(4 * page).unwrap();
    first.bytes_mut(0..4 * page).fill(7);
    drop(first);
    let second = spool.map(4 * page).unwrap();
    assert!(second.bytes(0..4 * page).iter().all(|byte| *byte == 0));
    assert_eq!(spool.file.metadata().unwrap().len(), 4 * page as u64);
}

#[test]
fn the_file_has_no_name() {
    let directory = tempfile::tempdir().unwrap();
    let unlinked = unlinked_file(directory.path(), Mode::RUSR | Mode::WUSR).unwrap();
    let unlinked = Arc::new(Spool::of_file(unlinked.into()));
    for spool in [Spool::in_directory(directory.path()).unwrap(), unlinked] {
        assert_eq!(spool.map(crate::mem::page_size()).unwrap().bytes(0..1)[0], 0);
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    assert!(Spool::in_directory(Path::new("/does/not/exist")).is_err());
}

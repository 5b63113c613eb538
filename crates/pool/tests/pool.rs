//! The pool against a reference model: a map from owner to bytes.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use pagefold_pool::{
    Arena, BackedFrames, FRAME_LEN, FrameSource, Handle, OBJECT_LEN_MAX, ObjectFit, Owner, Pool, Purpose,
    PutError, RefuseNth, Relocate, Reserve, SourceError,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

/// Owners that remember their handles, as slots do.
#[derive(Default)]
struct Owners(Mutex<HashMap<u64, Handle>>);

// SAFETY: the map is locked while a handle is exchanged, and while a reader copies through it.
unsafe impl Relocate for Owners {
    fn relocate(&self, owner: Owner, old: Handle, new: Handle) -> bool {
        let Ok(mut map) = self.0.try_lock() else { return false };
        match map.get_mut(&owner.value()) {
            Some(handle) if *handle == old => {
                *handle = new;
                true
            }
            _ => false,
        }
    }
}

/// A pool and its reference model.
struct Pair {
    pool: Pool,
    owners: Owners,
    model: HashMap<u64, Vec<u8>>,
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

/// Stores an object as a writer does: takes the missing frames and retries.
fn put(pool: &Pool, data: &[u8], key: u64) -> Result<Handle, SourceError> {
    let mut backed = BackedFrames::new(pool.source(), Purpose::Objects);
    loop {
        let frames = match pool.try_put_from(backed.frames(), data, Owner::new(key)) {
            Ok(handle) => return Ok(handle),
            Err(PutError::NoMemory { source, .. }) => return Err(source),
            Err(PutError::NotReady { frames }) => frames,
        };
        backed.charge(frames)?;
        backed.fill()?;
    }
}

impl Pair {
    fn new(source: Arc<dyn FrameSource>) -> Self {
        Pair { pool: Pool::new(source), owners: Owners::default(), model: HashMap::new() }
    }

    fn put(&mut self, key: u64, len: usize, seed: u64) -> Result<(), SourceError> {
        let data = bytes(seed, len);
        let handle = put(&self.pool, &data, key)?;
        let old = self.owners.0.lock().unwrap().insert(key, handle);
        self.model.insert(key, data);
        if let Some(old) = old {
            // SAFETY: the map no longer contains `old`, and this thread is the only one.
            unsafe { self.pool.free(old, &self.owners) };
        }
        Ok(())
    }

    fn remove(&mut self, key: u64) {
        let old = self.owners.0.lock().unwrap().remove(&key);
        self.model.remove(&key);
        if let Some(old) = old {
            // SAFETY: the map no longer contains `old`, and this thread is the only one.
            unsafe { self.pool.free(old, &self.owners) };
        }
    }

    fn check(&self) {
        let mut live = 0;
        for (key, data) in &self.model {
            let handle = self.owners.0.lock().unwrap()[key];
            assert_eq!(Handle::from_bits(handle.to_bits()), handle);
            let mut out = vec![MaybeUninit::uninit(); data.len()];
            // SAFETY: the handle is live and nothing else runs.
            let got = unsafe { self.pool.copy_out(handle, &mut out) };
            assert!(got == &data[..], "object of {key} differs");
            live += 1;
        }
        let stats = self.pool.class_stats();
        assert_eq!(stats.iter().map(|c| c.live).sum::<u64>(), live);
        for class in &stats {
            let places = (class.live + class.holes) * class.stride_bytes as u64;
            assert_eq!(class.frames, places.div_ceil(FRAME_LEN as u64), "{class:?}");
        }
        let frames: u64 = stats.iter().map(|c| c.frames).sum();
        assert_eq!(self.pool.source().arena().stats().in_use_bytes, frames * FRAME_LEN as u64);
    }
}

/// By how much less the tests do under Miri, which is a thousand times slower.
const MIRI_SHARE: u64 = if cfg!(miri) { 100 } else { 1 };

fn arena() -> Arc<Arena> {
    Arc::new(Arena::new(if cfg!(miri) { 2 << 20 } else { 1 << 30 }).unwrap())
}

#[test]
fn put_every_length_reads_back_and_costs_its_length() {
    let mut pair = Pair::new(arena());
    for len in 1..=OBJECT_LEN_MAX {
        pair.put(len as u64, len, len as u64).unwrap();
    }
    pair.check();
    for class in pair.pool.class_stats() {
        assert!(class.frames * FRAME_LEN as u64 <= class.live * class.stride_bytes as u64 + FRAME_LEN as u64);
    }
}

#[test]
fn freeing_all_objects_frees_all_frames() {
    let mut pair = Pair::new(arena());
    for key in 0..5000 {
        pair.put(key, 1 + (key as usize * 37) % OBJECT_LEN_MAX, key).unwrap();
    }
    for key in 0..5000 {
        pair.remove(key * 2_654_435_761 % 5000);
    }
    (0..5000).for_each(|key| pair.remove(key));
    pair.check();
    let stats = pair.pool.source().arena().stats();
    assert_eq!(stats.in_use_bytes, 0);
    assert!(stats.ready_bytes <= 4 << 20, "{stats:?}");
}

#[test]
fn compact_closes_all_holes() {
    let mut pair = Pair::new(arena());
    (0..40_000).for_each(|key| pair.put(key, 500 + (key as usize % 3) * 400, key).unwrap());
    // Few objects of each class: so few that freeing alone leaves some holes.
    (0..40_000).step_by(700).for_each(|key| pair.remove(key));
    assert!(pair.pool.class_stats().iter().any(|c| c.holes > 0));
    // SAFETY: all objects were put for these owners.
    unsafe { pair.pool.compact(&pair.owners) };
    assert!(pair.pool.class_stats().iter().all(|c| c.holes == 0));
    pair.check();
}

#[test]
fn overwrites_leave_few_holes() {
    let mut pair = Pair::new(arena());
    let mut state = 7u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % n
    };
    for i in 0..200_000u64 {
        let (key, len) = (random(20_000), 200 + random(3000) as usize);
        pair.put(key, len, i).unwrap();
    }
    pair.check();
    for class in pair.pool.class_stats() {
        assert!(class.holes <= 3 + class.live / 100, "{class:?}");
    }
}

#[test]
fn limit_refuses_and_keeps_everything() {
    let mut pair = Pair::new(arena());
    pair.pool.source().arena().set_limit(64 * FRAME_LEN as u64);
    let refused = (0..).find_map(|key| pair.put(key, 3000, key).err()).unwrap();
    assert_eq!(refused, SourceError::Limit { limit_bytes: 64 * FRAME_LEN as u64 });
    assert!(pair.pool.source().arena().stats().in_use_bytes <= 64 * FRAME_LEN as u64);
    assert!(pair.model.len() * 3000 > 63 * FRAME_LEN * 9 / 10);
    pair.check();
}

#[test]
fn refusing_the_nth_frame_keeps_the_old_objects() {
    for n in 0..60 {
        let source = Arc::new(RefuseNth::new(Arc::into_inner(arena()).unwrap(), u64::MAX));
        let mut pair = Pair::new(source.clone());
        (0..50).for_each(|key| pair.put(key, 1000 + key as usize * 61, key).unwrap());
        source.refuse_after(n);
        for key in 0..50 {
            let _ = pair.put(key, 4096 - key as usize * 61, key + 1000);
        }
        pair.check();
        source.allow();
        (0..50).for_each(|key| pair.put(key, 2000, key).unwrap());
        pair.check();
    }
}

#[test]
fn reserve_serves_and_refills_and_an_empty_one_fails_the_put() {
    let arena = Arc::new(Arena::new(64 << 20).unwrap());
    let reserve = Reserve::start(arena.clone(), 1 << 20).unwrap();
    assert!(arena.stats().ready_bytes >= 1 << 20);
    let mut pair = Pair::new(arena.clone());
    // Many times the reserve: a writer that finds it empty waits for the refill thread.
    (0..4000).for_each(|key| pair.put(key, 4000, key).unwrap());
    pair.check();
    // The address range ends, so nothing can be refilled.
    let failed = (4000..100_000).find_map(|key| pair.put(key, 4000, key).err());
    assert_eq!(failed, Some(SourceError::ReserveEmpty));
    pair.check();
    drop(reserve);
}

#[test]
fn threads_on_one_pool_keep_their_objects() {
    let pool = Pool::new(arena());
    let owners = Owners::default();
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (pool, owners) = (&pool, &owners);
            s.spawn(move || {
                for round in 0..4000 / MIRI_SHARE {
                    let key = thread * 1000 + round % 100;
                    let data = bytes(key, 1 + (key as usize * 131 + round as usize) % OBJECT_LEN_MAX);
                    let handle = put(pool, &data, key).unwrap();
                    let old = owners.0.lock().unwrap().insert(key, handle);
                    if let Some(old) = old {
                        // SAFETY: the map no longer contains `old`, and only this thread uses its keys.
                        unsafe { pool.free(old, owners) };
                    }
                    let map = owners.0.lock().unwrap();
                    let mut out = vec![MaybeUninit::uninit(); data.len()];
                    // SAFETY: the map is locked, so `relocate` refuses and no thread frees the handle.
                    let got = unsafe { pool.copy_out(map[&key], &mut out) };
                    assert!(got == &data[..]);
                }
            });
        }
        s.spawn(|| {
            (0..50).for_each(|_| {
                // SAFETY: all objects were put for these owners.
                unsafe { pool.compact(&owners) };
            })
        });
    });
}

/// At the border of a frame an incompressible page needs two frames. With the refill thread, the writers and their
/// frees, most of the time only one is ready.
#[test]
fn no_put_fails_while_a_reserve_is_being_refilled() {
    let arena = Arc::new(Arena::new(1 << 30).unwrap());
    let reserve = Reserve::start(arena.clone(), 1).unwrap();
    let pool = Pool::new(arena);
    let owners = Owners::default();
    std::thread::scope(|s| {
        for thread in 0..4u64 {
            let (pool, owners) = (&pool, &owners);
            s.spawn(move || {
                let data = bytes(thread, OBJECT_LEN_MAX);
                for round in 0..20u64 {
                    for key in thread * 1000..thread * 1000 + 700 {
                        let handle = put(pool, &data, key).unwrap_or_else(|e| panic!("round {round}: {e}"));
                        owners.0.lock().unwrap().insert(key, handle);
                    }
                    for key in thread * 1000..thread * 1000 + 700 {
                        let handle = owners.0.lock().unwrap().remove(&key).unwrap();
                        // SAFETY: the map no longer contains the handle, and only this thread uses its keys.
                        unsafe { pool.free(handle, owners) };
                    }
                }
            });
        }
    });
    assert_eq!(pool.source().arena().stats().in_use_bytes, 0);
    drop(reserve);
}

/// Raw objects use 4104 bytes without gaps, so as many fit as the bytes of all frames allow.
#[test]
fn a_put_is_refused_only_if_its_frames_exceed_the_limit() {
    for limit in (1..40).chain([512, 513, 514, 515, 1026, 1027]) {
        let mut pair = Pair::new(arena());
        pair.pool.source().arena().set_limit(limit * FRAME_LEN as u64);
        let stored = (0..).take_while(|key| pair.put(*key, OBJECT_LEN_MAX, *key).is_ok()).count();
        assert_eq!(stored as u64, limit * FRAME_LEN as u64 / (OBJECT_LEN_MAX as u64 + 8), "{limit} frames");
        pair.check();
    }
}

#[test]
fn an_arena_can_be_as_long_as_frames_have_numbers() {
    for len_bytes in [1, 4096, (16 << 40) - 4096, 16 << 40, (16 << 40) + 1, u64::MAX] {
        // The machine may not have that much address space; the computation must not overflow.
        if let Ok(arena) = Arena::new(len_bytes) {
            let pool = Pool::new(Arc::new(arena));
            put(&pool, &[1; 100], 1).unwrap();
        }
    }
}

/// Frames are tokens: each is given once, and only to the pool of its arena.
#[test]
#[should_panic(expected = "a frame of another arena")]
fn a_frame_of_another_arena_is_not_used() {
    let (here, there) = (Pool::new(arena()), Pool::new(arena()));
    let mut backed = BackedFrames::new(there.source(), Purpose::Objects);
    backed.charge(1).unwrap();
    backed.fill().unwrap();
    let _ = here.try_put_from(backed.frames(), &[1; 100], Owner::new(1));
}

#[test]
fn an_object_is_overwritten_in_place_and_takes_nothing() {
    let mut pair = Pair::new(arena());
    for key in 0..100 {
        pair.put(key, 1 + (key as usize * 37) % OBJECT_LEN_MAX, key).unwrap();
    }
    let before = pair.pool.source().arena().stats();
    for key in 0..100 {
        let len = pair.model[&key].len();
        let data = bytes(key + 1000, if key % 2 == 0 { len } else { 1 + len / 2 });
        let handle = pair.owners.0.lock().unwrap()[&key];
        assert_eq!(pair.pool.fit(handle, OBJECT_LEN_MAX) == ObjectFit::TooShort, len < OBJECT_LEN_MAX - 16);
        let lock_owner = || {
            let map = pair.owners.0.lock().unwrap();
            (map[&key] == handle).then_some(map)
        };
        // SAFETY: with the map locked and the handle in it, nothing else uses or moves the object.
        assert!(unsafe { pair.pool.overwrite(handle, &data, lock_owner) }.is_some());
        pair.model.insert(key, data.clone());
        // SAFETY: as before; an owner that is not locked changes nothing.
        assert!(unsafe { pair.pool.overwrite(handle, &[7], || None::<()>) }.is_none());
    }
    pair.check();
    assert_eq!(pair.pool.source().arena().stats(), before);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 48 },
        // Miri has no files.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn any_history_agrees_with_the_model(
        steps in prop::collection::vec((0u64..60, 0usize..=OBJECT_LEN_MAX, any::<u64>()), 1..400 / MIRI_SHARE.min(8) as usize)
    ) {
        let mut pair = Pair::new(arena());
        for (key, len, seed) in steps {
            match len {
                0 => pair.remove(key),
                _ if seed % 50 == 0 => {
                    // SAFETY: all objects were put for these owners.
                    unsafe { pair.pool.compact(&pair.owners) };
                }
                // Few classes, so that holes and moves interact.
                _ if seed % 2 == 0 => pair.put(key, 1 + len % 20 * 200, seed).unwrap(),
                _ => pair.put(key, len, seed).unwrap(),
            }
        }
        pair.check();
    }
}

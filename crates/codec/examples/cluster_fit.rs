//! Measures the encoders of clusters without a builder around them, on files that are cut into clusters.
//!
//! `cluster_fit --bare THREADS CLUSTER_BYTES CONFIG -- FILE...` cuts the files into pieces as an image's writer does, and
//! prints the time that several threads need to compress these pieces whole, and their CPU time: the limit of a builder
//! with as many threads. A configuration is `lz4`, `lz4hc:9`, `zstd:12`, with `@WINDOW` where it has one. `--library` in
//! place of `--bare` is the same with liblz4's encoder of `lz4hc`: the limit of a builder that leaves compression to that
//! library. `bench/image_build.py` runs both.

#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]

use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// `struct timespec` of glibc's time.h.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
    // liblz4's lz4hc.h. pagefold-codec links the library.
    fn LZ4_sizeofStateHC() -> i32;
    fn LZ4_compress_HC_extStateHC(
        state: *mut u64,
        src: *const u8,
        dst: *mut u8,
        src_len: i32,
        dst_capacity: i32,
        level: i32,
    ) -> i32;
}

/// liblz4's encoder of `lz4hc`.
struct Library {
    state: Vec<u64>,
    level: i32,
}

impl Library {
    fn new(level: i32) -> Self {
        // SAFETY: the call only returns a length.
        let state_bytes = unsafe { LZ4_sizeofStateHC() } as usize;
        Library { state: vec![0; state_bytes.div_ceil(size_of::<u64>())], level }
    }

    fn whole(&mut self, src: &[u8], dst: &mut [u8]) -> Option<usize> {
        let lens = [src.len(), dst.len()].map(|len| len.try_into().unwrap());
        // SAFETY: the state is as long as the library says, aligned to 8 bytes and borrowed mutably, and the call
        // initialises it; the slices are live and as long as said.
        let written = unsafe {
            LZ4_compress_HC_extStateHC(
                self.state.as_mut_ptr(),
                src.as_ptr(),
                dst.as_mut_ptr(),
                lens[0],
                lens[1],
                self.level,
            )
        };
        usize::try_from(written).ok().filter(|written| *written > 0)
    }
}

/// The clock of time.h that counts the CPU time of all threads.
const CLOCK_PROCESS_CPUTIME_ID: i32 = 2;

/// Returns the CPU time of this process: other processes may run on the machine.
fn cpu_time() -> Duration {
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the call only writes the time, which is live.
    assert_eq!(unsafe { clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.seconds as u64, time.nanoseconds as u32)
}

/// The blocks that an image consists of.
const BLOCK: usize = 4096;

fn config(text: &str, cluster: usize) -> EncoderConfig {
    let (name, window) = text.split_once('@').map_or((text, None), |(n, w)| (n, Some(w.parse().unwrap())));
    let (name, level) = name.split_once(':').unwrap_or((name, "0"));
    let level = level.parse().unwrap();
    match name {
        "lz4" => EncoderConfig::Lz4 { window_bytes: window.unwrap_or(65535) },
        "lz4hc" => EncoderConfig::Lz4Hc { window_bytes: window.unwrap_or(65535), level },
        "zstd" => {
            let max_window_bytes = window.unwrap_or((8 * cluster as u32).clamp(1 << 15, 1 << 20));
            EncoderConfig::Zstd { max_window_bytes, level }
        }
        "deflate" => EncoderConfig::Deflate { level },
        "microlzma" => {
            let dict_bytes = window.unwrap_or((4 * cluster as u32).clamp(1 << 15, 8 << 20));
            EncoderConfig::MicroLzma { dict_bytes, level, extreme: false }
        }
        _ => panic!("no configuration {text}"),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, threads, cluster, text, separator, paths @ ..] = &arguments[..] else {
        panic!("usage: cluster_fit --bare|--library THREADS CLUSTER_BYTES CONFIG -- FILE...")
    };
    assert!(["--bare", "--library"].contains(&mode.as_str()) && separator == "--");
    let (threads, cluster) = (threads.parse().unwrap(), cluster.parse().unwrap());
    let files = paths.iter().filter_map(|path| std::fs::read(path).ok());
    let files: Vec<Vec<u8>> = files.filter(|file| !file.is_empty()).collect();
    let total: usize = files.iter().map(Vec::len).sum();
    println!("{} files, {total} bytes, clusters of {cluster}", files.len());
    measure(&config(text, cluster), &files, cluster, threads, mode == "--library");
}

/// Cuts the files into pieces as `fit` does, and prints the time in which the threads compress these pieces.
fn measure(config: &EncoderConfig, files: &[Vec<u8>], cluster: usize, threads: usize, is_library: bool) {
    let next = AtomicUsize::new(0);
    let pieces = Mutex::new(Vec::new());
    let cut = || {
        let (mut encoder, mut dst) = (Encoder::new(config).unwrap(), vec![0; cluster]);
        while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
            let mut rest = &file[..];
            while !rest.is_empty() {
                let consumed = encoder.fit(rest, &mut dst).unwrap().consumed_bytes;
                let (now, later) =
                    rest.split_at(if consumed < BLOCK { BLOCK.min(rest.len()) } else { consumed });
                pieces.lock().unwrap().push(now);
                rest = later;
            }
        }
    };
    let run = |work: &(dyn Fn() + Sync)| {
        next.store(0, Relaxed);
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    };
    run(&cut);
    let pieces = pieces.into_inner().unwrap();
    let (begin, cpu_before) = (Instant::now(), cpu_time());
    run(&|| {
        let (mut encoder, mut dst) = (Encoder::new(config).unwrap(), vec![0; 16 << 20]);
        let mut library = is_library.then(|| match config {
            EncoderConfig::Lz4Hc { level, .. } => Library::new(*level),
            _ => panic!("--library is for lz4hc"),
        });
        while let Some(piece) = pieces.get(next.fetch_add(1, Relaxed)) {
            let written = match &mut library {
                Some(library) => library.whole(piece, &mut dst),
                None => encoder.whole(piece, &mut dst).unwrap(),
            };
            assert!(written.is_some());
        }
    });
    let (elapsed, cpu) = (begin.elapsed(), cpu_time() - cpu_before);
    println!(
        "{} pieces, {threads} threads, bare {:.3} s, CPU {:.3} s",
        pieces.len(),
        elapsed.as_secs_f64(),
        cpu.as_secs_f64()
    );
}

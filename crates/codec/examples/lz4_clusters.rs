//! Compares the dense LZ4 encoder with liblz4 at the same levels, on files that are cut into clusters.
//!
//! `lz4_clusters CLUSTER_BYTES LEVEL... -- FILE...` prints for each level and both encoders the CPU time to fill the
//! clusters of the files, their number, and the CPU time of liblz4's decoder for them. liblz4 compresses by
//! `LZ4_compress_HC_destSize`, as mkfs.erofs does, and as a stream that is reset for each cluster, which is faster for
//! small ones. The encoders alternate file by file.

#![allow(clippy::unwrap_used, reason = "a measurement that fails has no result")]

use pagefold_codec::cluster::encode::{Encoder, EncoderConfig};
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

unsafe extern "C" {
    fn LZ4_compress_HC_destSize(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: *mut c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
    fn LZ4_createStreamHC() -> *mut c_void;
    fn LZ4_resetStreamHC_fast(stream: *mut c_void, level: c_int);
    fn LZ4_compress_HC_continue_destSize(
        stream: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: *mut c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// `struct timespec` of glibc's time.h.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut Timespec) -> i32;
}

/// Returns the CPU time of this thread: other processes may run on the machine.
fn cpu_time() -> Duration {
    const CLOCK_THREAD_CPUTIME_ID: i32 = 3;
    let mut time = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the call only writes the time, which is live.
    assert_eq!(unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.seconds as u64, time.nanoseconds as u32)
}

/// Returns the lengths consumed and written.
type Fill<'a> = Box<dyn FnMut(&[u8], &mut [u8]) -> (usize, usize) + 'a>;

fn ours(level: i32, window_bytes: u32) -> Fill<'static> {
    let mut encoder = Encoder::new(&EncoderConfig::Lz4Hc { window_bytes, level }).unwrap();
    Box::new(move |src, dst| {
        let fit = encoder.fit(src, dst).unwrap();
        (fit.consumed_bytes, fit.written_bytes)
    })
}

fn library(level: i32, is_stream: bool) -> Fill<'static> {
    // SAFETY: the call allocates a state, which lives as long as the program.
    let state = unsafe { LZ4_createStreamHC() };
    Box::new(move |src, dst| {
        // mkfs.erofs passes a limited part of the source too.
        let mut consumed = src.len().min(dst.len() * 16).max(1) as c_int;
        let (from, to, room) = (src.as_ptr().cast(), dst.as_mut_ptr().cast(), dst.len() as c_int);
        // SAFETY: the state is live, and so are the slices, whose lengths are passed.
        let written = unsafe {
            if is_stream {
                LZ4_resetStreamHC_fast(state, level);
                LZ4_compress_HC_continue_destSize(state, from, to, &mut consumed, room)
            } else {
                LZ4_compress_HC_destSize(state, from, to, &mut consumed, room, level)
            }
        };
        (consumed as usize, written as usize)
    })
}

/// The work of one encoder.
#[derive(Default)]
struct Total {
    encode: Duration,
    decode: Duration,
    clusters: usize,
    stored: usize,
    sequences: usize,
}

impl Total {
    fn add(&mut self, fill: &mut Fill<'_>, file: &[u8], cluster: usize, room: &mut [u8]) {
        const BLOCK: usize = 4096;
        let mut streams = Vec::new();
        let (mut rest, mut dst) = (file, vec![0; cluster]);
        while !rest.is_empty() {
            let begin = cpu_time();
            let (consumed, written) = fill(rest, &mut dst);
            self.encode += cpu_time() - begin;
            let is_plain = consumed < BLOCK.min(rest.len());
            let (now, later) = rest.split_at(if is_plain { BLOCK.min(rest.len()) } else { consumed });
            rest = later;
            if is_plain {
                self.stored += BLOCK;
            } else {
                streams.push((dst[..written].to_vec(), now));
                self.clusters += 1;
                self.stored += if rest.is_empty() { written } else { cluster };
                self.sequences += sequences(&dst[..written]);
            }
        }
        let mut best = Duration::MAX;
        for _ in 0..3 {
            let begin = cpu_time();
            for (stream, plain) in &streams {
                let (from, to) = (stream.as_ptr().cast(), room.as_mut_ptr().cast());
                // SAFETY: the slices are live, and their lengths are passed.
                let len = unsafe {
                    lz4_sys::LZ4_decompress_safe(from, to, stream.len() as c_int, plain.len() as c_int)
                };
                assert_eq!(len as usize, plain.len());
            }
            best = best.min(cpu_time() - begin);
        }
        self.decode += best;
        for (stream, plain) in &streams {
            let (from, to) = (stream.as_ptr().cast(), room.as_mut_ptr().cast());
            // SAFETY: the slices are live, and their lengths are passed.
            unsafe { lz4_sys::LZ4_decompress_safe(from, to, stream.len() as c_int, room.len() as c_int) };
            assert!(room[..plain.len()] == **plain);
        }
    }
}

/// Returns the number of sequences of a valid block.
fn sequences(stream: &[u8]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < stream.len() {
        let token = stream[at];
        at += 1;
        let len = |at: &mut usize, mut len: usize| {
            if len == 15 {
                loop {
                    *at += 1;
                    len += usize::from(stream[*at - 1]);
                    if stream[*at - 1] != 255 {
                        break;
                    }
                }
            }
            len
        };
        at += len(&mut at, usize::from(token >> 4));
        if at < stream.len() {
            at += 2;
            len(&mut at, usize::from(token & 15));
        }
        count += 1;
    }
    count
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let split = arguments.iter().position(|a| a == "--").unwrap();
    let cluster: usize = arguments[0].parse().unwrap();
    let files: Vec<Vec<u8>> = arguments[split + 1..].iter().filter_map(|f| std::fs::read(f).ok()).collect();
    let len: usize = files.iter().map(Vec::len).sum();
    println!("{} files, {len} bytes, clusters of {cluster}", files.len());
    let mut room = vec![0; 12 << 20];
    for level in &arguments[1..split] {
        let level: i32 = level.parse().unwrap();
        let mut encoders = [ours(level, 65535), library(level, true), library(level, false)];
        let mut totals = [const { None }; 3].map(|_: Option<()>| Total::default());
        for file in &files {
            for (total, fill) in totals.iter_mut().zip(&mut encoders) {
                total.add(fill, file, cluster, &mut room);
            }
        }
        let [mine, stream, plain] = &totals;
        let ratio = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        for (name, total) in [("ours", mine), ("liblz4", stream), ("liblz4 destSize", plain)] {
            println!(
                "{level:>2} {name:<16} encode {:>7.3} s x{:.3}  bytes {} x{:.5}  clusters {}  sequences {} x{:.4}  \
                 decode {:.4} s x{:.3}",
                total.encode.as_secs_f64(),
                ratio(total.encode, plain.encode),
                total.stored,
                total.stored as f64 / plain.stored as f64,
                total.clusters,
                total.sequences,
                total.sequences as f64 / plain.sequences as f64,
                total.decode.as_secs_f64(),
                ratio(total.decode, plain.decode),
            );
        }
    }
}

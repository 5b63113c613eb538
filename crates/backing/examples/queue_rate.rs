//! Measures the write throughput of a file through a queue: `queue_rate FILE [REQUESTS [fresh]]`.
//!
//! Makes FILE (or overwrites it), and writes it from front to back with direct I/O, at several depths and sizes,
//! alternating between the ring and positioned writes. With `fresh`, the file is emptied before each run, so that the
//! writes go to holes.

use pagefold_backing::{
    Backing, BackingError, Buffers, Completion, Demand, Direct, FileBacking, FileOptions, Operation, Request,
    Uring,
};
use std::fs::File;
use std::time::{Duration, Instant};

const SIZES_BYTES: [usize; 2] = [4096, 128 << 10];
const DEPTHS: [usize; 2] = [1, 32];
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: queue_rate FILE [REQUESTS [fresh]]")?;
    let requests: usize = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let is_fresh = arguments.next().is_some_and(|word| word == "fresh");
    let len_bytes = (requests * SIZES_BYTES[0]) as u64;
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
    open()?.set_len(len_bytes)?;
    let media = [Uring::On, Uring::Off].map(|uring| (uring, FileOptions { direct: Direct::On, uring }));
    for size_bytes in SIZES_BYTES {
        for depth in DEPTHS {
            for _ in 0..ROUNDS {
                for (uring, options) in media {
                    let file = open()?;
                    if is_fresh {
                        file.set_len(0)?;
                        file.set_len(len_bytes)?;
                    }
                    let backing = FileBacking::new(file, options)?;
                    let count = requests * SIZES_BYTES[0] / size_bytes;
                    let elapsed = write_all(&backing, size_bytes, depth, count)?;
                    let us = elapsed.as_secs_f64() * 1e6 / count as f64;
                    let mb_per_s = size_bytes as f64 / us;
                    println!(
                        "{size_bytes:>7} bytes, depth {depth:>2}, ring {uring:?}: {us:8.2} us, {mb_per_s:7.0} MB/s"
                    );
                }
            }
        }
    }
    Ok(())
}

/// Writes `count` pieces in order, `depth` in flight. Returns the time without the queue's setup.
fn write_all(
    backing: &FileBacking,
    size_bytes: usize,
    depth: usize,
    count: usize,
) -> Result<Duration, BackingError> {
    let buffers = Buffers::new(size_bytes * depth)?;
    let mut queue = backing.queue(depth, &buffers)?;
    let mut idle = Vec::new();
    idle.extend((0..depth).filter_map(|_| buffers.get(size_bytes, Demand::BestEffort)));
    idle.iter_mut().for_each(|buf| buf.fill(0x5A));
    let mut done: Vec<Completion> = Vec::new();
    let start = Instant::now();
    for piece in 0..count as u64 {
        if idle.is_empty() {
            queue.complete(depth.div_ceil(2), &mut done);
            for completion in done.drain(..) {
                completion.result?;
                idle.push(completion.request.buf);
            }
        }
        let Some(buf) = idle.pop() else { continue };
        let offset = piece * size_bytes as u64;
        let request = Request { id: piece, operation: Operation::Write, offset, buf, len_bytes: size_bytes };
        if let Err(refused) = queue.submit(request) {
            return refused.result.map(|()| start.elapsed());
        }
    }
    queue.complete(usize::MAX, &mut done);
    Ok(start.elapsed())
}

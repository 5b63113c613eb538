//! fio with verification: random reads and writes of many lengths from several jobs.

use crate::case::Context;
use crate::process::{self, tail};
use crate::random::Random;
use crate::verdict::Fault;
use std::time::Duration;

/// Time limit of a run. The data is bounded, but the machine may be shared.
const LIMIT: Duration = Duration::from_secs(180);

/// Most bytes that a run writes or reads, so that cases take seconds.
const DATA_MAX: u64 = 5 << 30;
const PAGE: u64 = pagefold_page::PAGE_SIZE as u64;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The parameters of a run of fio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fio {
    /// Seed of offsets and data.
    pub seed: u64,
    /// Jobs; each writes to a separate part of the bytes.
    pub jobs: u64,
    /// Bytes of all jobs.
    pub bytes: u64,
    /// Requests in flight of each job.
    pub depth: u64,
    /// Shortest and longest request.
    pub block_bytes: (u64, u64),
    /// Share of reads, percent.
    pub reads: u64,
    /// `--buffer_compress_percentage`.
    pub compress: u64,
    /// Times that all bytes are written and verified. Rewriting leaves holes on a backing.
    pub loops: u64,
    /// Whether offsets are sequential, not random.
    pub is_sequential: bool,
}

impl Fio {
    /// Draws a load of at most `room` bytes.
    pub fn draw(random: &mut Random, room: u64) -> Self {
        let bytes = (room / 100 * random.pick(&[30, 60, 80, 90, 99])).max(MIB);
        // Jobs that shared bytes could not verify them.
        let jobs = random.pick(&[1, 2, 4, 4, 4, 8]).min(bytes / MIB);
        Fio {
            seed: random.next() >> 33,
            jobs,
            bytes,
            depth: random.pick(&[1, 4, 32, 32, 32]),
            block_bytes: random.pick(&[
                (PAGE, PAGE),
                (PAGE, 64 * KIB),
                (64 * KIB, 64 * KIB),
                (PAGE, MIB),
                (PAGE, MIB),
                (PAGE, MIB),
            ]),
            reads: random.pick(&[0, 30, 50, 70]),
            compress: random.pick(&[0, 0, 0, 0, 40, 80]),
            loops: random.pick(&[1, 4, 8, 8]).min(DATA_MAX / bytes).max(1),
            is_sequential: random.percent(8),
        }
    }

    /// Draws a load that rewrites most of `room` bytes several times, in requests of all lengths.
    pub fn rewriting(random: &mut Random, room: u64) -> Self {
        let bytes = room / 100 * random.between(85, 99);
        let (jobs, depth, block_bytes) = (4, 32, (PAGE, MIB));
        let loops = (DATA_MAX / bytes.max(1)).clamp(1, 8);
        Fio {
            jobs,
            bytes,
            depth,
            block_bytes,
            compress: 0,
            loops,
            is_sequential: false,
            ..Fio::draw(random, room)
        }
    }

    /// Runs fio on a block device or an NBD export. A failure that fio reports is a fault.
    pub fn run(&self, context: &Context, device: &str, round: u64) -> Result<String, Fault> {
        let per_job = self.bytes / self.jobs / MIB * MIB;
        let longest = self.block_bytes.1.min(per_job);
        let kind = if self.is_sequential { "rw" } else { "randrw" };
        let mut args = vec![
            "--name=soak".to_string(),
            format!("--rw={kind}"),
            format!("--rwmixread={}", self.reads),
            format!("--bsrange={}-{longest}", self.block_bytes.0),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.jobs),
            format!("--size={per_job}"),
            format!("--offset_increment={per_job}"),
            format!("--randseed={}", self.seed + round),
            format!("--buffer_compress_percentage={}", self.compress),
            format!("--loops={}", self.loops),
            "--refill_buffers=1".to_string(),
            "--verify=crc32c".to_string(),
            "--verify_fatal=1".to_string(),
            "--verify_backlog=1024".to_string(),
            "--group_reporting".to_string(),
            "--allow_file_create=0".to_string(),
            "--output-format=terse".to_string(),
        ];
        match device.starts_with("nbd") {
            true => args.extend(["--ioengine=nbd".to_string(), format!("--uri={device}")]),
            false => args.extend(
                ["--ioengine=libaio", "--direct=1"]
                    .map(String::from)
                    .into_iter()
                    .chain([format!("--filename={device}")]),
            ),
        }
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        let ran = process::run(context, "fio", &args, LIMIT)?;
        match ran.code {
            0 => Ok(format!("fio of {} MiB, {} times", per_job * self.jobs / MIB, self.loops)),
            code => Err(Fault::failed("fio", format!("exit code {code}: {}", tail(&ran.err, 800)))),
        }
    }
}

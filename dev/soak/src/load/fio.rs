//! fio with verification: random reads and writes of many lengths from several jobs.

use crate::case::Context;
use crate::process;
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

/// A run of fio.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fio {
    /// Seed of offsets and data.
    pub seed: u64,
    /// Jobs; each writes to a separate part of the bytes.
    pub jobs: u64,
    /// Options with all other parameters.
    pub options: Vec<String>,
}

impl Fio {
    /// Draws a load of at most `room` bytes. One that rewrites writes most of them several times, in requests of all
    /// lengths, which leaves holes on a backing.
    pub fn draw(random: &mut Random, room: u64, rewrites: bool) -> Self {
        let share = if rewrites { random.between(85, 99) } else { random.pick(&[30, 60, 80, 90, 99]) };
        let bytes = (room / 100 * share).max(MIB);
        let drawn_jobs = if rewrites { 4 } else { random.pick(&[1, 2, 4, 4, 4, 8]) };
        // Jobs that shared bytes could not verify them.
        let jobs = drawn_jobs.min(bytes / MIB);
        let per_job = bytes / jobs / MIB * MIB;
        let depth = random.pick(&[1, 4, 32, 32, 32]);
        let (shortest, longest) = random.pick(&[
            (PAGE, PAGE),
            (PAGE, 64 * KIB),
            (64 * KIB, 64 * KIB),
            (PAGE, MIB),
            (PAGE, MIB),
            (PAGE, MIB),
        ]);
        let compressible = random.pick(&[0, 0, 0, 0, 40, 80]);
        // Times that all bytes are written and verified.
        let loops = random.pick(&[1, 4, 8, 8]);
        let kind = if !rewrites && random.percent(8) { "rw" } else { "randrw" };
        let (depth, shortest, longest, compressible, loops) =
            if rewrites { (32, PAGE, MIB, 0, 8) } else { (depth, shortest, longest, compressible, loops) };
        let options = vec![
            format!("--rw={kind}"),
            format!("--rwmixread={}", random.pick(&[0, 30, 50, 70])),
            format!("--bsrange={shortest}-{}", longest.min(per_job)),
            format!("--iodepth={depth}"),
            format!("--numjobs={jobs}"),
            format!("--size={per_job}"),
            format!("--offset_increment={per_job}"),
            format!("--buffer_compress_percentage={compressible}"),
            format!("--loops={}", (DATA_MAX / bytes).clamp(1, loops)),
        ];
        Fio { seed: random.next() >> 33, jobs, options }
    }

    /// Runs fio on a block device or an NBD export. A failure that fio reports is a fault.
    pub fn run(&self, context: &Context, device: &str, round: u64) -> Result<String, Fault> {
        let fixed = "--name=soak --refill_buffers=1 --verify=crc32c --verify_fatal=1 --verify_backlog=1024 \
                     --group_reporting --allow_file_create=0 --output-format=terse";
        let (seed, target) = (
            format!("--randseed={}", self.seed + round),
            match device.starts_with("nbd") {
                true => format!("--ioengine=nbd --uri={device}"),
                false => format!("--ioengine=libaio --direct=1 --filename={device}"),
            },
        );
        let words = fixed.split(' ').chain(target.split(' ')).chain([seed.as_str()]);
        let args: Vec<_> = words.chain(self.options.iter().map(String::as_str)).collect();
        process::run(context, "fio", &args, LIMIT)?.ok()?;
        Ok(format!("fio {}", self.options.join(" ")))
    }
}

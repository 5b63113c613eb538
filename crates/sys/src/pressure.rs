//! Pressure stall information (PSI): how much tasks of this machine, or of a control group, wait for CPUs, memory and I/O.
//!
//! The kernel has one small text file per resource (Documentation/accounting/psi.rst). Only its `some` line is read:
//! the share of time in which at least one task waited. The result is `None` if the kernel has no PSI, if PSI is
//! switched off (then the file exists and reading it fails), or if the text cannot be parsed. Callers decide what to do
//! about a pressure.

use std::io::Read;
use std::path::Path;

/// Limit of the bytes that are read; the files have two lines of about 70 bytes.
const TEXT_LEN_MAX: u64 = 4096;

/// A resource for which tasks wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// A CPU to run on.
    Cpu,
    /// Input and output.
    Io,
    /// Memory: reclaim, and swapped pages that are read back.
    Memory,
}

impl Resource {
    fn path(self) -> &'static str {
        match self {
            Resource::Cpu => "/proc/pressure/cpu",
            Resource::Io => "/proc/pressure/io",
            Resource::Memory => "/proc/pressure/memory",
        }
    }
}

/// The time in which at least one task waited for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stall {
    /// Its share of about the last ten seconds, in hundredths of a per cent: 0 to 10 000.
    pub avg10_centipercent: u32,
    /// Its total since boot, microseconds.
    pub total_us: u64,
}

/// Reads the stall of a resource; `None` if it is not available.
pub fn read(resource: Resource) -> Option<Stall> {
    read_file(resource.path().as_ref())
}

/// Reads the stall in a pressure file, which may be that of a control group.
pub(crate) fn read_file(path: &Path) -> Option<Stall> {
    let file = std::fs::File::open(path).ok()?;
    let mut text = Vec::with_capacity(256);
    file.take(TEXT_LEN_MAX).read_to_end(&mut text).ok()?;
    parse(&text)
}

/// Parses the `some` line of a pressure file. Ignores unknown fields; `avg10` and `total` must be present.
pub fn parse(text: &[u8]) -> Option<Stall> {
    let text = std::str::from_utf8(text).ok()?;
    let fields = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = |key: &str| {
        fields.split_ascii_whitespace().find_map(|field| field.strip_prefix(key)?.strip_prefix('='))
    };
    Some(Stall { avg10_centipercent: centipercent(value("avg10")?)?, total_us: number(value("total")?)? })
}

/// Parses `12.3` or `12.34`, at most 100.
fn centipercent(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.')?;
    let tenths = match fraction.len() {
        1 => 10,
        2 => 1,
        _ => return None,
    };
    let (whole, fraction) = (number(whole)?, number(fraction)?);
    let sum = whole.checked_mul(100)?.checked_add(fraction * tenths)?;
    u32::try_from(sum).ok().filter(|share| *share <= 10_000)
}

/// Parses digits only: `parse` alone would accept a plus sign.
fn number(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: &str = "some avg10=2.30 avg60=1.06 avg300=0.55 total=5412678030\n\
                        full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";

    #[test]
    fn parse_reads_the_some_line_at_any_position() {
        let want = Stall { avg10_centipercent: 230, total_us: 5_412_678_030 };
        assert_eq!(parse(REAL.as_bytes()), Some(want));
        // Before Linux 5.13 cpu had no `full` line, and `some` need not stay the first line.
        assert_eq!(parse(REAL.lines().next().unwrap().as_bytes()), Some(want));
        let swapped: Vec<_> = REAL.lines().rev().collect();
        assert_eq!(parse(swapped.join("\n").as_bytes()), Some(want));
        let more = b"some new=1 avg10=100.00 total=18446744073709551615 other=x";
        assert_eq!(parse(more), Some(Stall { avg10_centipercent: 10_000, total_us: u64::MAX }));
    }

    #[test]
    fn malformed_text_is_none() {
        for bad in [
            "",
            "\n\n",
            "some",
            "some ",
            "full avg10=2.30 total=1",
            "some avg10=2.30",
            "some total=5",
            "some avg10= total=5",
            "some avg10=2 total=5",
            "some avg10=2.345 total=5",
            "some avg10=-2.30 total=5",
            "some avg10=+2.30 total=5",
            "some avg10=nan total=5",
            "some avg10=100.01 total=5",
            "some avg10=99999999999999999999.00 total=5",
            "some avg10=184467440737095516.00 total=5",
            "some avg10=2.30 total=18446744073709551616",
            "some avg10=2.30 total=0x5",
            "some avg100=2.30 total=5",
            "somewhat avg10=2.30 total=5",
        ] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse(b"some avg10=\xff total=5"), None);
        // A text that is cut at any byte is either malformed, or has a shorter but valid number.
        for len in 0..REAL.len() {
            if let Some(stall) = parse(&REAL.as_bytes()[..len]) {
                assert!(stall.avg10_centipercent == 230 && stall.total_us <= 5_412_678_030);
            }
        }
    }

    #[test]
    fn the_files_of_this_kernel_are_parsed_if_they_can_be_read() {
        for resource in [Resource::Cpu, Resource::Io, Resource::Memory] {
            let has_text = std::fs::read(resource.path()).is_ok();
            assert_eq!(read(resource).is_some(), has_text, "{resource:?}");
        }
    }
}

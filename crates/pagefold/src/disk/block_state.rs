//! `disk block-state`.

use super::page_ranges;
use crate::cli::output;
use clap::{Args, ValueHint};
use pagefold_control::client::Client;
use pagefold_control::error::Result;

/// The arguments of `disk block-state`.
#[derive(Debug, Args)]
pub struct BlockStateArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// Print pages A to B only, both included. Page 0 is the first 4096 bytes of the device. Can be repeated
    #[arg(long, value_name = "A-B")]
    pub pages: Vec<String>,
}

/// The flags, for the long help.
pub const FLAGS: &str = "\
Flags:
  s  same-filled: the page repeats one 8-byte word
  w  written back: the page is on the backing
  h  huge: the page does not compress, and is stored as it is
  i  idle: marked by 'disk set DISK idle=...', and not accessed since
  r  recompressed, with a codec of a priority above 0
  n  incompressible: the codec of the highest priority has not made the page smaller; of pages in memory only

A written-back page keeps h and r, except on a disk with --compressed-writeback off.

Example:
  pagefold disk block-state disk0
           300           75.000000 ..h..n
           301           63.000000 s.....";

/// Prints the states of the pages of a disk.
pub fn run(args: &BlockStateArgs) -> Result<()> {
    let ranges = page_ranges::parse(&args.pages)?;
    super::find::with_client(&args.disk, |client| print(client, &ranges))
}

fn print(client: &mut Client, ranges: &[(u64, u64)]) -> Result<()> {
    let mut print = |lines: &str| output::piece(lines.as_bytes());
    if ranges.is_empty() {
        return client.block_state(0, None, &mut print);
    }
    // If the pipe is closed, the first line of a further range finds that out.
    ranges.iter().try_for_each(|&(first, last)| client.block_state(first, Some(last), &mut print))
}

//! The values of `--sector-size`.

use clap::ValueEnum;
use pagefold_control::config::SectorSize;

/// A value of `--sector-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SectorArg {
    /// A page of the store: no write reads what it does not replace
    #[value(name = "4096")]
    Page,
    /// For images of disks and file systems that were made for 512
    #[value(name = "512")]
    Small,
}

impl From<SectorArg> for SectorSize {
    fn from(arg: SectorArg) -> Self {
        match arg {
            SectorArg::Page => SectorSize::Page,
            SectorArg::Small => SectorSize::Small,
        }
    }
}

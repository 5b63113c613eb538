//! `image show`.

use super::file;
use super::findings;
use super::open::{ImageArgs, failure, path_bytes};
use super::overview::Overview;
use super::stats::{self, StatsArgs};
use crate::cli::{output, style};
use clap::Args;
use pagefold_control::error::Result;
use pagefold_control::media::Location;
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image::{Located, ReadAhead};
use std::path::PathBuf;

/// The arguments of `image show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// Show this file or directory in the image
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Show the figures of a mount again and again, as `image stats --watch` does. IMAGE is mounted, or a directory
    /// that one is mounted on
    #[arg(long, conflicts_with = "path")]
    pub watch: bool,
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// Shows an image, or a file in it.
pub fn run(args: &ShowArgs) -> Result<()> {
    if args.watch {
        let mount = match &args.image.media.image {
            Location::File(path) => path.clone(),
            Location::Url(url) => url.into(),
        };
        return stats::run(&StatsArgs { mount, watch: true, interval: "1s".into(), json: args.json });
    }
    let image = args.image.open(ReadAhead::Off)?;
    if let Some(path) = &args.path {
        let of = |e| failure(path_bytes(path), &e);
        let Located { path, node } = image.locate(path_bytes(path)).map_err(of)?;
        return match args.json {
            true => file::print_json(&node, &path, of),
            false => file::print_text(&node, &path, of),
        };
    }
    let stats = TreeStats::of_image(&image, &Limits::default());
    let stats = stats.map_err(|e| args.image.failure(&e))?;
    let offset_bytes = args.image.media.offset.bytes()?;
    let overview = Overview { image: &image, stats: &stats, offset_bytes };
    match args.json {
        true => output::json(&overview.json())?,
        false => output::text(&overview.text(&args.image.media.image.name(), style::stdout_colours()))?,
    }
    findings::print_text(&stats.findings);
    findings::check(&stats.findings, "wrong with the image; the statistics are of what can be read")
}

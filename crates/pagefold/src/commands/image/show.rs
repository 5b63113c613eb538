//! `image show`.

use super::file;
use super::open::{ImageArgs, failure, path_bytes};
use super::overview::Overview;
use crate::cli::{chart, output};
use crate::failure::{Failure, Outcome};
use clap::Args;
use pagefold_image::survey::Survey;
use pagefold_image::walk::Limits;
use pagefold_image::{Located, ReadAhead};
use std::path::PathBuf;

/// `image show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// A file or directory in the image
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Ask the server that has the image mounted
    #[arg(long, conflicts_with = "path")]
    pub live: bool,
    /// Print JSON with exact numbers
    #[arg(long)]
    pub json: bool,
}

/// Shows an image, or a file in it. What a mounted image does (`--live`) is asked for before anything is opened.
pub fn run(args: &ShowArgs) -> Outcome<()> {
    if args.live {
        return super::live::run(&args.image.image, args.json);
    }
    let image = args.image.open(ReadAhead::Off)?;
    if let Some(path) = &args.path {
        let of = |e| failure(&super::names::escaped(path_bytes(path)), &e);
        let Located { path, node } = image.locate(path_bytes(path)).map_err(of)?;
        return match args.json {
            true => file::print_json(&node, &path, of),
            false => file::print_text(&node, &path, of),
        };
    }
    let survey = Survey::of_image(&image, &Limits::default());
    let survey = survey.map_err(|e| failure(&args.image.image.display().to_string(), &e))?;
    let overview = Overview { image: &image, survey: &survey };
    match args.json {
        true => output::json(&overview.json())?,
        false => output::text(&overview.text(&args.image.image, output::stdout_colours()))?,
    }
    match survey.findings.errors() {
        0 => Ok(()),
        n => Err(Failure::failed(format!(
            "{} wrong with the image, and missing in the statistics; 'pagefold image check' tells more",
            chart::counted(n, "thing is", "things are")
        ))),
    }
}

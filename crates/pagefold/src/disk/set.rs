//! `disk set`.

use crate::cli::progress::PassBar;
use clap::{Args, ValueHint};
use pagefold_control::error::Result;
use pagefold_server::attributes;

/// The arguments of `disk set`.
#[derive(Debug, Args)]
pub struct SetArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// An attribute and its new value; the attributes are listed below. Can be repeated
    #[arg(value_name = "ATTRIBUTE=VALUE", required = true)]
    pub changes: Vec<String>,
}

/// Sets attributes, after checking all values.
pub fn run(args: &SetArgs) -> Result<()> {
    for change in &args.changes {
        attributes::parse_change(change)?;
    }
    let mut bar = PassBar::new(true, "done", "written or saved");
    let done = super::find::with_client(&args.disk, |client| client.set(&args.changes, &mut |p| bar.show(p)));
    bar.end();
    done
}

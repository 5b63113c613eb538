//! `disk set`.

use crate::cli::args::SetArgs;
use crate::failure::Outcome;
use crate::service::attributes;

/// Changes attributes: all of them are understood before the first is changed.
pub fn run(args: &SetArgs) -> Outcome<()> {
    for change in &args.changes {
        attributes::parse_change(change)?;
    }
    super::talk(&args.name, |client| client.set(&args.changes))
}

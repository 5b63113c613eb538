//! `disk set`.

use crate::cli::args::SetArgs;
use crate::cli::progress::PassBar;
use crate::failure::Outcome;
use crate::service::attributes;

/// Changes attributes: all of them are understood before the first is changed.
pub fn run(args: &SetArgs) -> Outcome<()> {
    for change in &args.changes {
        attributes::parse_change(change)?;
    }
    let mut bar = PassBar::new(true);
    let done = super::talk(&args.name, |client| client.set(&args.changes, &mut |p| bar.show(p)));
    bar.end();
    done
}

//! `pagefold-bench store`: runs the chosen measurements of the engine on all page sets.

use super::plan::Plan;
use super::report::Report;
use super::{
    Measurement, StoreArgs, compare, density, pages, recompress, same_filled, statistics, threads, zram_tree,
};
use crate::output;
use std::io::IsTerminal;

/// Runs the chosen measurements and prints the report.
pub fn run(args: &StoreArgs) -> anyhow::Result<()> {
    let plan = if args.quick { Plan::QUICK } else { Plan::FULL };
    let wanted = |m| args.only.is_empty() || args.only.contains(&m);
    let (sets, missing) = pages::load(&args.pages, plan.pages_max)?;
    let mut report = Report::new(plan, args.quick, missing);
    if cfg!(debug_assertions) {
        report.note("this is a debug build: its figures mean nothing; use --release".into());
    }
    for set in &sets {
        if wanted(Measurement::Pages) {
            progress(args, &format!("pages of set '{}'", set.name));
            compare::measure(set, &plan, &mut report)?;
        }
        if wanted(Measurement::SameFilled) {
            same_filled::measure(set, &plan, &mut report)?;
        }
        if wanted(Measurement::Threads) {
            progress(args, &format!("two threads on set '{}'", set.name));
            threads::measure(set, &plan, &mut report)?;
        }
        if wanted(Measurement::Statistics) {
            progress(args, &format!("statistics beside set '{}'", set.name));
            statistics::measure(set, &plan, &mut report)?;
        }
        if wanted(Measurement::Recompress) {
            progress(args, &format!("recompression of set '{}'", set.name));
            recompress::measure(set, &plan, &mut report)?;
        }
    }
    if wanted(Measurement::Density) {
        progress(args, "density");
        density::measure(&sets, &plan, &mut report)?;
    }
    if wanted(Measurement::Tree) {
        progress(args, "files of statistics");
        zram_tree::measure(&plan, &mut report)?;
    }
    let text = if args.json { report.json()? } else { report.text() };
    Ok(output::text(&text)?)
}

/// Prints the current step on a terminal; a full run takes minutes.
fn progress(args: &StoreArgs, what: &str) {
    if !args.quick && std::io::stderr().is_terminal() {
        output::diagnostics(&format!("measuring {what} ...\n"));
    }
}

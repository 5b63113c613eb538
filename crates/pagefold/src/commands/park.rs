//! `disk park`.

use crate::cli::args::ParkArgs;
use crate::cli::progress::PassBar;
use crate::cli::{chart, output};
use crate::failure::{Failure, Outcome};
use crate::service::parked::PassReport;
use crate::service::protocol::Pages;
use pagefold_page::duration;
use pagefold_page::size::Human;
use pagefold_sys::signal::Termination;

/// Most ranges in one command: they go to the server in one line.
const MAX_RANGES: usize = 250;

/// Parks pages of a disk, and says what was done, even if not all of it was.
pub fn run(args: &ParkArgs) -> Outcome<()> {
    let pages = pages(args)?;
    // From here on Ctrl-C ends the pass, and then this command.
    let signals = Termination::listen()?;
    let mut bar = PassBar::new(!args.json && !args.quiet);
    let parked = super::talk(&args.name, |client| client.park(&pages, &signals, &mut |p| bar.show(p)));
    bar.end();
    let report = parked?;
    match (args.json, args.quiet) {
        (true, _) => output::json(&report)?,
        (_, true) => {}
        _ => output::line(&summary(&report))?,
    }
    match report.failure {
        None => Ok(()),
        Some(f) => Err(Failure::new(f.exit, format!("not all pages were parked: {f}"))),
    }
}

/// What was typed, as what is meant.
fn pages(args: &ParkArgs) -> Outcome<Pages> {
    if let Some(age) = &args.idle {
        let age_s = duration::parse_s(age).map_err(|e| Failure::usage(format!("--idle: {e}")))?;
        return Ok(Pages::Idle { age_s });
    }
    Ok(match () {
        _ if args.huge => Pages::Huge,
        _ if args.huge_idle => Pages::HugeIdle,
        _ if args.incompressible => Pages::Incompressible,
        _ if args.all => Pages::All,
        _ => Pages::Ranges(ranges(&args.pages)?),
    })
}

fn ranges(texts: &[String]) -> Outcome<Vec<(u64, u64)>> {
    if texts.len() > MAX_RANGES {
        return Err(Failure::usage(format!("--pages: at most {MAX_RANGES} ranges in one command")));
    }
    texts.iter().map(|text| range(text)).collect()
}

fn range(text: &str) -> Outcome<(u64, u64)> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse::<u64>().ok() } else { None }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        (Some(_), Some(_)) => Err(Failure::usage(format!("--pages: {text} ends before it starts (ERANGE)"))),
        _ => Err(Failure::usage(format!("--pages: '{text}' is not a range of pages, such as 0-24999"))),
    }
}

/// One line about a pass.
fn summary(r: &PassReport) -> String {
    let written = format!("{} written in {}", Human(r.written_bytes), chart::time(r.elapsed_ns));
    let mut parts = vec![match r.parked_pages {
        0 if r.changed_pages + r.failed_pages == 0 && r.failure.is_none() => {
            "no page of these is in memory, so none was parked".to_string()
        }
        n => format!("parked {} pages ({written})", chart::count(n)),
    }];
    if r.changed_pages > 0 {
        parts.push(format!("{} stayed: changed meanwhile", chart::count(r.changed_pages)));
    }
    if r.failed_pages > 0 {
        parts.push(format!("{} stayed: their write failed", chart::count(r.failed_pages)));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Exit;

    #[test]
    fn ranges_have_both_ends_or_one_page() {
        assert_eq!(range("1-25000").unwrap(), (1, 25000));
        assert_eq!(range("7").unwrap(), (7, 7));
        for bad in ["", "-", "1-", "-1", "a-b", "1-2-3", "+1", "2-1", "99999999999999999999"] {
            assert_eq!(range(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        ranges(&vec!["1-2".to_string(); MAX_RANGES]).unwrap();
        ranges(&vec!["1-2".to_string(); MAX_RANGES + 1]).unwrap_err();
    }

    #[test]
    fn the_summary_says_what_stayed_and_why() {
        let mut report = PassReport {
            parked_pages: 25_000,
            payload_bytes: 34_000_000,
            written_bytes: 34_708_992,
            failed_pages: 0,
            changed_pages: 12,
            elapsed_ns: 1_200_000_000,
            failure: None,
        };
        let text = "parked 25 000 pages (33.10 MiB written in 1.2 s); 12 stayed: changed meanwhile";
        assert_eq!(summary(&report), text);
        report.failed_pages = 3;
        assert!(summary(&report).ends_with("; 3 stayed: their write failed"));
        report = PassReport { parked_pages: 0, failed_pages: 0, changed_pages: 0, ..report };
        assert!(summary(&report).starts_with("no page"));
        report.failure = Some(Failure::failed("full"));
        assert!(summary(&report).starts_with("parked 0 pages"));
    }
}

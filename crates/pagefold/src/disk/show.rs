//! `disk show`.

use crate::cli::page::Page;
use crate::cli::style::{self, ERROR, WARNING};
use crate::cli::{chart, numbers, output};
use clap::{Args, ValueHint};
use pagefold_control::error::Result;
use pagefold_control::export_kind::ExportKind;
use pagefold_control::report::LatencyReport;
use pagefold_control::report::disk::{
    ClientsReport, IoReport, Report, RestoringReport, ShownDisk, WriteState,
};
use pagefold_control::report::recompress::RecompressStatus;
use pagefold_control::report::writeback::WritebackStatus;
use pagefold_control::text;
use pagefold_page::duration;
use pagefold_page::size::Human;
use pagefold_server::disk::{OWN_BYTES, RESERVE_BYTES, TABLE_BYTES_PER_GIB};
use std::time::{SystemTime, UNIX_EPOCH};

/// The arguments of `disk show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name, device or mount point of the disk
    #[arg(value_name = "DISK", value_hint = ValueHint::AnyPath)]
    pub disk: String,
    /// Print JSON with exact numbers
    #[arg(long, conflicts_with = "attribute")]
    pub json: bool,
    /// Print the size classes of the pool too. A class has objects of one size, packed into pages of memory
    #[arg(long, conflicts_with = "attribute")]
    pub classes: bool,
    /// Print only the value of one attribute; the attributes are listed below
    #[arg(long, short = 'a', value_name = "ATTRIBUTE")]
    pub attribute: Option<String>,
}

/// Shows one disk.
pub fn run(args: &ShowArgs) -> Result<()> {
    if let Some(attribute) = &args.attribute {
        return output::line(&super::find::ask(&args.disk, |client| client.get(attribute))?);
    }
    let (report, classes) = super::find::ask(&args.disk, |client| {
        let classes = args.classes.then(|| client.classes()).transpose()?;
        Ok((client.show()?, classes))
    })?;
    let colours = style::stdout_colours();
    if args.json {
        return output::json(&ShownDisk { report, classes });
    }
    let text = render(&report, colours);
    match classes {
        Some(classes) => output::text(&format!("{text}\n{}", super::classes::render(&classes, colours))),
        None => output::text(&text),
    }
}

/// Formats a report as text.
fn render(r: &Report, colours: bool) -> String {
    let mut page = Page::new(colours, 14);
    let size = Human(r.size_bytes);
    let contents = match r.writeback {
        None => "volatile: lost when the disk is removed or the machine restarts",
        Some(_) => {
            "volatile: lost when the disk is removed or the machine restarts, including written-back pages"
        }
    };
    let device = if r.device.is_empty() { "no device" } else { &r.device };
    page.heading(&format!("{}  {size}  {device}", r.name));
    page.row("state", &state(&page, r));
    for warning in &r.warnings {
        let warning = page.paint(WARNING, warning);
        page.row("warning", &warning);
    }
    page.row("contents", contents);
    r.restoring.iter().for_each(|restoring| restoring_rows(&mut page, restoring));
    let through = r.transport.as_ref().map_or_else(String::new, |transport| format!(" through {transport}"));
    let server =
        format!("process {}, {} export{through}, up {}", r.server.pid, r.export, age(r.created_unix_s));
    page.row("server", &server);
    page.row("if it dies", &r.keeper.in_words("the contents are lost"));
    page.row("confined", &r.confinement.in_words());
    page.row("used by", &if r.used_by.is_empty() { "nobody".to_string() } else { r.used_by.join(", ") });
    if let Some(clients) = &r.clients {
        page.row("clients", &clients_row(clients));
    }
    page.row("codec", &codec(r));
    page.heading("Stored");
    stored(&mut page, r);
    page.heading("Memory");
    memory(&mut page, r);
    if let Some(writeback) = &r.writeback {
        page.heading("Written back");
        written_back(&mut page, writeback);
    }
    if let Some(recompression) = &r.recompression {
        page.heading("Recompressed");
        recompressed(&mut page, recompression);
    }
    page.heading("Requests");
    for name in ["read", "write", "discard", "write_zeroes", "flush"] {
        if let Some(io) = r.io.get(name).filter(|io| io.requests > 0 || matches!(name, "read" | "write")) {
            requests(&mut page, name, io);
        }
    }
    events(&mut page, r);
    replies(&mut page, r);
    for name in ["read", "write"] {
        if let Some(io) = r.io.get(name).filter(|io| !io.latency.buckets.is_empty()) {
            latency(&mut page, name, io);
        }
    }
    page.into_text()
}

/// The part of a restore that is done.
pub fn restored_part(r: &RestoringReport) -> String {
    let percent = r.seen_pages.saturating_mul(100) / r.total_pages.max(1);
    format!("{percent} % of {}", numbers::counted(r.total_pages, "page", "pages"))
}

fn restoring_rows(page: &mut Page, r: &RestoringReport) {
    let wait = match r.waits_for_memory {
        true => "; the memory limit is reached: the rest is read from it each time",
        false => "",
    };
    let from = r.path.display();
    page.row("restoring", &format!("{}, from {from}, which must stay as it is{wait}", restored_part(r)));
    if let Some(first) = &r.first_unreadable {
        let pages = numbers::counted(r.unreadable_pages, "page", "pages");
        let text = format!("{pages} cannot be read, the first: {first}");
        page.row("unreadable", &page.paint(ERROR, &text));
    }
}

fn recompressed(page: &mut Page, r: &RecompressStatus) {
    for codec in &r.codecs {
        let level = codec.level.map_or(String::new(), |level| format!(", level {level}"));
        let after =
            codec.after_s.map_or("on request".to_string(), |s| format!("after {}", duration::text(s)));
        let (name, pages) = (&codec.name, numbers::counted(codec.pages, "page", "pages"));
        page.row(&format!("priority {}", codec.priority), &format!("{name}{level}, {after}: {pages}"));
    }
    let saved = format!("{} by {} pages", Human(r.saved_bytes), numbers::count(r.recompressed_pages));
    page.row("saved so far", &saved);
    page.row("not smaller", &numbers::counted(r.not_smaller_pages, "page", "pages"));
}

/// Whether the disk accepts writes and has a device, and advice if not.
fn state(page: &Page, r: &Report) -> String {
    let (words, name) = (r.state_in_words(), &r.name);
    let text = match r.state {
        WriteState::Ok if r.device.is_empty() => {
            "detached: somebody detached the loop device; 'disk remove' ends the server".to_string()
        }
        WriteState::Ok => match refused(r) {
            None => return words.to_string(),
            Some(refused) => {
                format!("{words}, but {refused}: a file system on the disk may have lost data; check it")
            }
        },
        WriteState::LimitReached => {
            format!("{words}; discard data, or raise the limit: disk set {name} mem_limit=SIZE")
        }
        WriteState::NoMemory => format!("{words}; discard data, or end other programs"),
        WriteState::ExportEnded => {
            let reason = r.export_failure.as_deref().unwrap_or("its threads have ended");
            format!("{words}, because {reason}; remove the disk: disk remove {name}")
        }
        WriteState::NoSize => format!("{words}: set one by disk set {name} disksize=SIZE"),
    };
    page.paint(ERROR, &text)
}

/// The writes that the disk has refused so far, in words; `None` if there were none.
pub fn refused(r: &Report) -> Option<String> {
    let count = r.events.refused_writes;
    let last = r.events.last_refused_write_unix_s.filter(|_| count > 0)?;
    let writes = numbers::counted(count, "write was", "writes were");
    Some(format!("{writes} refused, the last {} ago", age(last)))
}

/// Formats the time since `unix_s`.
fn age(unix_s: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let s = now.saturating_sub(unix_s);
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86400 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{} d {} h", s / 86400, s % 86400 / 3600),
    }
}

fn clients_row(c: &ClientsReport) -> String {
    let others = numbers::counts([
        (c.in_handshake as u64, "in the handshake"),
        (c.refused_full, "refused: too many clients"),
        (c.unused, "disconnected for another client: no request sent"),
        (c.slow_handshakes, "disconnected in the handshake: too slow"),
        (c.refused_peer, "refused: another user"),
        (c.failed, "failed"),
    ]);
    let others: String = others.map(|text| format!("; {text}")).collect();
    format!("{} of at most {}{others}", c.open, c.most_open)
}

fn codec(r: &Report) -> String {
    let mut text = r.codec.name.clone();
    text.extend(r.codec.level.map(|level| format!(", level {level}")));
    text + &numbers::if_any(r.codec.dictionary_bytes, |n| format!(", dictionary of {}", Human(n)))
}

fn stored(page: &mut Page, r: &Report) {
    let p = &r.pages;
    page.row("data", &format!("{} in {} pages", Human(r.original_bytes), numbers::count(p.stored)));
    let in_memory = if r.writeback.is_some() { " in memory" } else { "" };
    page.row("stored as", &format!("{}{in_memory}", Human(r.compressed_bytes)));
    let ratio = r.ratio.map_or("-".to_string(), |x| format!("{x:.2} (data / memory)"));
    page.row("ratio", &ratio);
    let written_back = r.writeback.as_ref().map(|_| ("written back", p.written_back));
    let in_memory = [("compressed", p.compressed), ("same-filled", p.same_filled), ("raw", p.raw)];
    for (name, n) in in_memory.into_iter().chain(written_back) {
        page.row(name, &format!("{:>12} pages{}", numbers::count(n), share(n, p.stored)));
    }
}

fn share(n: u64, all: u64) -> String {
    numbers::if_any(all, |all| format!("  {:>3.0} %", n as f64 / all as f64 * 100.0))
}

fn written_back(page: &mut Page, p: &WritebackStatus) {
    let lifetime = if p.created { "removed with the disk" } else { "stays when the disk is removed" };
    page.row("backing", &format!("{} (not encrypted; {lifetime})", p.path));
    let layout = if p.layout == "log" { "compressed and packed" } else { "one page per block" };
    page.row("medium", &format!("{}; {layout}", p.medium));
    page.row("now", &p.condition);
    let used = format!("{} pages in {}", numbers::count(p.pages), Human(p.bytes));
    page.row("holds", &format!("{used}; {} of {} free", Human(p.free_bytes), Human(p.capacity_bytes)));
    let ratio =
        p.write_ratio.map_or(String::new(), |x| format!(" for {} of pages ({x:.2})", Human(p.payload_bytes)));
    let cleaner = numbers::if_any(p.cleaned_bytes, |n| format!(", and {} by the cleaner", Human(n)));
    page.row("written", &format!("{}{ratio}{cleaner}", Human(p.written_bytes)));
    let promoted =
        numbers::if_any(p.promoted_pages, |n| format!("; {} moved back to memory", numbers::count(n)));
    let read = numbers::count(p.read_pages);
    page.row("read back", &format!("{read} pages, {}{promoted}", Human(p.read_bytes)));
    limits(page, p);
    problems(page, p);
}

fn limits(page: &mut Page, p: &WritebackStatus) {
    let limits = [
        p.limit_left_pages.map(|n| format!("{} pages left of writeback_limit", numbers::count(n))),
        p.rate_bytes_per_s.map(|n| format!("at most {}/s", Human(n))),
        p.daily_bytes.map(|n| format!("at most {} in 24 hours", Human(n))),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if !limits.is_empty() {
        page.row("limits", &limits.join(", "));
    }
}

fn problems(page: &mut Page, p: &WritebackStatus) {
    if p.throttled_writes > 0 {
        let (n, time) = (numbers::count(p.throttled_writes), text::time(p.throttled_ns));
        page.row("waited", &format!("{n} writes waited for space in memory, {time} in all"));
    }
    if p.changed_pages > 0 {
        let n = numbers::count(p.changed_pages);
        page.row("stayed", &format!("{n} pages, because they were changed while they were written"));
    }
    let problems = numbers::counts([
        (p.failed_pages, "pages stayed in memory because their write failed"),
        (p.unreadable_pages, "reads of written-back pages failed because the medium failed"),
        (p.corrupt_pages, "reads of written-back pages failed because the data on the medium is corrupt"),
    ]);
    problems.for_each(|text| page.row("problem", &page.paint(ERROR, &text)));
}

fn memory(page: &mut Page, r: &Report) {
    let m = &r.memory;
    let limit = m.limit_bytes.map_or("no limit".to_string(), |l| format!("limit {}", Human(l)));
    let (now, max) = (Human(m.pool_bytes), Human(m.pool_max_bytes));
    page.row("pages", &format!("{now}, at most {max} so far, {limit}"));
    page.row("table", &Human(m.slot_table_bytes).to_string());
    page.row("ready", &format!("{} kept free for writes", Human(m.ready_bytes)));
    if let Some(rings) = &m.rings {
        page.row("rings", &numbers::rings(rings));
    }
    let size = |bytes: Option<u64>| bytes.map_or("?".to_string(), |b| Human(b).to_string());
    let (now, peak) = (size(r.server.rss_bytes), size(r.server.peak_rss_bytes));
    page.row("server RSS", &format!("{now}, at most {peak} so far"));
    page.row("beside pages", &overhead(&r.export));
}

/// The memory that the server takes beside that for pages, at most.
fn overhead(export: &str) -> String {
    let has_reserve = ExportKind::named(export).is_some_and(|kind| kind.facts().is_for_swap);
    let reserve = if has_reserve { format!(", {} of reserve", Human(RESERVE_BYTES)) } else { String::new() };
    format!("up to {}{reserve}, and {} for each GiB written", Human(OWN_BYTES), Human(TABLE_BYTES_PER_GIB))
}

fn requests(page: &mut Page, name: &str, io: &IoReport) {
    let failed = |n| format!(", {}", page.paint(ERROR, &format!("{} failed", numbers::count(n))));
    let errors = numbers::if_any(io.errors, failed);
    let name = name.replace('_', " ");
    page.row(&name, &format!("{:>12}, {}{errors}", numbers::count(io.requests), Human(io.bytes)));
}

fn events(page: &mut Page, r: &Report) {
    let e = &r.events;
    for (name, n) in [
        ("failed writes", e.failed_writes),
        ("failed reads", e.failed_reads),
        ("slow writes", e.slow_writes),
        ("stream waits", e.stream_waits),
    ] {
        if n > 0 {
            let last = match (name, e.last_refused_write_unix_s) {
                ("failed writes", Some(at)) => format!(", the last {} ago", age(at)),
                _ => String::new(),
            };
            page.row(name, &format!("{:>12}{last}", numbers::count(n)));
        }
    }
}

/// How long the export takes for replies, beside the latency of the store.
fn replies(page: &mut Page, r: &Report) {
    for name in ["read", "write"] {
        if let Some(io) = r.io.get(name).filter(|io| !io.reply_latency.buckets.is_empty()) {
            page.row(&format!("{name} replies"), &percentiles(&io.reply_latency));
        }
    }
}

fn percentiles(l: &LatencyReport) -> String {
    let [p50, p99, max] = [l.p50_ns, l.p99_ns, l.max_ns].map(numbers::time);
    format!("p50 <= {p50}, p99 <= {p99}, max {max}")
}

fn latency(page: &mut Page, name: &str, io: &IoReport) {
    let l = &io.latency;
    page.heading(&format!("Latency of {name}s: {}", percentiles(l)));
    page.push(&chart::histogram(&l.buckets, "  "));
}

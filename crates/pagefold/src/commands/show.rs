//! `disk show`.

use crate::cli::args::ShowArgs;
use crate::cli::{chart, output};
use crate::failure::Outcome;
use crate::service::client::Client;
use crate::service::parked::ParkingReport;
use crate::service::refused::WriteState;
use crate::service::report::{ClientsReport, IoReport, Report};
use pagefold_page::size::Human;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Shows one disk.
pub fn run(args: &ShowArgs) -> Outcome<()> {
    if let Some(attribute) = &args.attribute {
        return output::line(&super::talk(&args.name, |client| client.get(attribute))?);
    }
    let report = super::talk(&args.name, Client::show)?;
    match args.json {
        true => output::json(&report),
        false => output::text(&render(&report, output::stdout_colours())),
    }
}

/// A report for people.
fn render(r: &Report, colours: bool) -> String {
    let mut page = Page { text: String::new(), colours };
    let size = Human(r.size_bytes);
    let contents = match r.parking {
        None => "volatile: lost when the disk is removed or its server ends",
        Some(_) => "volatile: lost when the disk is removed or its server ends, parked pages too",
    };
    let device = if r.device.is_empty() { "no device" } else { &r.device };
    page.heading(&format!("{}  {size}  {device}", r.name));
    page.row("state", &state(&page, r));
    for warning in &r.warnings {
        let warning = output::paint(page.colours, "1;33", warning);
        page.row("warning", &warning);
    }
    page.row("contents", contents);
    page.row("server", &format!("process {}, {} door, up {}", r.server.pid, r.door, uptime(r)));
    page.row("used by", &if r.used_by.is_empty() { "nobody".to_string() } else { r.used_by.join(", ") });
    if let Some(clients) = &r.clients {
        page.row("clients", &clients_row(clients));
    }
    page.row("codec", &codec(r));
    page.heading("Stored");
    stored(&mut page, r);
    page.heading("Memory");
    memory(&mut page, r);
    if let Some(parking) = &r.parking {
        page.heading("Parked");
        parked(&mut page, parking);
    }
    page.heading("Requests");
    for name in ["read", "write", "discard", "write_zeroes", "flush"] {
        if let Some(io) = r.io.get(name).filter(|io| io.requests > 0 || matches!(name, "read" | "write")) {
            requests(&mut page, name, io);
        }
    }
    events(&mut page, r);
    for name in ["read", "write"] {
        if let Some(io) = r.io.get(name).filter(|io| !io.latency.buckets.is_empty()) {
            latency(&mut page, name, io);
        }
    }
    page.text
}

struct Page {
    text: String,
    colours: bool,
}

impl Page {
    fn heading(&mut self, text: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.push(&format!("{gap}{}\n", output::paint(self.colours, "1", text)));
    }

    fn row(&mut self, name: &str, value: &str) {
        self.push(&format!("  {name:<14} {value}\n"));
    }

    fn push(&mut self, text: &str) {
        // Writing to a string does not fail.
        let _ = self.text.write_str(text);
    }
}

/// Whether the disk takes writes and can be reached, and what to do if not.
fn state(page: &Page, r: &Report) -> String {
    let text = match r.state {
        WriteState::Ok if r.device.is_empty() => {
            "detached: somebody took the loop device away; 'disk remove' ends the server".to_string()
        }
        WriteState::Ok => return r.state_in_words().to_string(),
        WriteState::LimitReached => {
            format!("{}; discard data, or raise it: disk set {} mem_limit=SIZE", r.state_in_words(), r.name)
        }
        WriteState::NoMemory => {
            format!("{}; discard data, or end other programs", r.state_in_words())
        }
    };
    output::paint(page.colours, "1;31", &text)
}

fn uptime(r: &Report) -> String {
    age(r.created_unix_s)
}

/// How long ago a time was.
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
    let mut text = format!("{} of at most {}", c.open, c.most_open);
    for (n, what) in [
        (c.in_handshake as u64, "in the handshake"),
        (c.refused_full, "turned away: too many"),
        (c.unused, "gave way without having sent a request"),
        (c.slow_handshakes, "hung up on in the handshake: too slow"),
        (c.refused_peer, "turned away: another user's"),
        (c.failed, "failed"),
    ] {
        if n > 0 {
            text.push_str(&format!("; {} {what}", chart::count(n)));
        }
    }
    text
}

fn codec(r: &Report) -> String {
    let mut text = r.codec.name.clone();
    if let Some(level) = r.codec.level {
        text.push_str(&format!(", level {level}"));
    }
    if r.codec.dictionary_bytes > 0 {
        text.push_str(&format!(", dictionary of {}", Human(r.codec.dictionary_bytes)));
    }
    text
}

fn stored(page: &mut Page, r: &Report) {
    let p = &r.pages;
    page.row("data", &format!("{} in {} pages", Human(r.original_bytes), chart::count(p.stored)));
    let in_memory = if r.parking.is_some() { " in memory" } else { "" };
    page.row("compressed", &format!("{}{in_memory}", Human(r.compressed_bytes)));
    let ratio = r.ratio.map_or("-".to_string(), |x| format!("{x:.2} (data by memory)"));
    page.row("ratio", &ratio);
    for (name, n) in [("folded", p.folded), ("same-filled", p.same_filled), ("raw", p.raw)] {
        page.row(name, &format!("{:>12} pages{}", chart::count(n), share(n, p.stored)));
    }
    if r.parking.is_some() {
        page.row("parked", &format!("{:>12} pages{}", chart::count(p.parked), share(p.parked, p.stored)));
    }
}

fn share(n: u64, all: u64) -> String {
    match all {
        0 => String::new(),
        all => format!("  {:>3.0} %", n as f64 / all as f64 * 100.0),
    }
}

fn parked(page: &mut Page, p: &ParkingReport) {
    let fate = if p.created { "removed with the disk" } else { "stays when the disk is removed" };
    page.row("on", &format!("{} ({fate})", p.path));
    let layout = if p.layout == "log" { "compressed and packed" } else { "one page per block" };
    page.row("medium", &format!("{}; {layout}", p.medium));
    page.row("now", &p.condition);
    let used = format!("{} pages in {}", chart::count(p.pages), Human(p.bytes));
    page.row("holds", &format!("{used}; {} of {} free", Human(p.free_bytes), Human(p.capacity_bytes)));
    let ratio =
        p.write_ratio.map_or(String::new(), |x| format!(" for {} of pages ({x:.2})", Human(p.payload_bytes)));
    let cleaner = match p.cleaned_bytes {
        0 => String::new(),
        n => format!(", and {} by the cleaner", Human(n)),
    };
    page.row("written", &format!("{}{ratio}{cleaner}", Human(p.written_bytes)));
    let promoted = match p.promoted_pages {
        0 => String::new(),
        n => format!("; {} came back to memory", chart::count(n)),
    };
    page.row(
        "read back",
        &format!("{} pages, {}{promoted}", chart::count(p.read_pages), Human(p.read_bytes)),
    );
    limits(page, p);
    trouble(page, p);
}

fn limits(page: &mut Page, p: &ParkingReport) {
    let limits = [
        p.limit_left_pages.map(|n| format!("{} pages left of writeback_limit", chart::count(n))),
        p.rate_bytes_per_s.map(|n| format!("at most {}/s", Human(n))),
        p.daily_bytes.map(|n| format!("at most {} in 24 hours by itself", Human(n))),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    if !limits.is_empty() {
        page.row("limits", &limits.join(", "));
    }
}

fn trouble(page: &mut Page, p: &ParkingReport) {
    if p.throttled_writes > 0 {
        let (n, time) = (chart::count(p.throttled_writes), chart::time(p.throttled_ns));
        page.row("waited", &format!("{n} writes waited for room in memory, {time} in all"));
    }
    if p.changed_pages > 0 {
        let n = chart::count(p.changed_pages);
        page.row("stayed", &format!("{n} pages that were changed while they were written"));
    }
    for (n, what) in [
        (p.failed_pages, "pages stayed in memory because their write failed"),
        (p.unreadable_pages, "failed reads of parked pages, because the medium fails"),
        (p.corrupt_pages, "failed reads of parked pages, because what is there is not what was written"),
    ] {
        if n > 0 {
            let text = output::paint(page.colours, "1;31", &format!("{} {what}", chart::count(n)));
            page.row("trouble", &text);
        }
    }
}

fn memory(page: &mut Page, r: &Report) {
    let m = &r.memory;
    let limit = m.limit_bytes.map_or("no limit".to_string(), |l| format!("limit {}", Human(l)));
    let (now, max) = (Human(m.pool_bytes), Human(m.pool_max_bytes));
    page.row("pages", &format!("{now}, at most {max} so far, {limit}"));
    page.row("table", &Human(m.slot_table_bytes).to_string());
    page.row("ready", &format!("{} kept free for writes", Human(m.ready_bytes)));
    page.row("server RSS", &m.server_rss_bytes.map_or("?".to_string(), |b| Human(b).to_string()));
}

fn requests(page: &mut Page, name: &str, io: &IoReport) {
    let errors = match io.errors {
        0 => String::new(),
        n => format!(", {}", output::paint(page.colours, "1;31", &format!("{} failed", chart::count(n)))),
    };
    let name = name.replace('_', " ");
    page.row(&name, &format!("{:>12}, {}{errors}", chart::count(io.requests), Human(io.bytes)));
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
            page.row(name, &format!("{:>12}{last}", chart::count(n)));
        }
    }
}

fn latency(page: &mut Page, name: &str, io: &IoReport) {
    let l = &io.latency;
    let at_most = |ns: Option<u64>| ns.map_or("-".to_string(), chart::time);
    let (p50, p99, max) = (at_most(l.p50_ns), at_most(l.p99_ns), at_most(l.max_ns));
    page.heading(&format!("Latency of {name}s: p50 <= {p50}, p99 <= {p99}, max {max}"));
    page.push(&chart::histogram(&l.buckets, "  "));
}

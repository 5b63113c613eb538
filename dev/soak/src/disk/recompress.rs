//! Commands that compress pages of a disk again: drawn, run, and checked.
//!
//! A pass with a slow codec takes longer than a case, so every command is interrupted after some seconds.

use super::config::{Config, FurtherCodec, WORKERS_MAX};
use super::server::{NAME, Server};
use crate::model::FRAME;
use crate::random::Random;
use crate::recompression::{self, Codec, THRESHOLD_END};
use crate::verdict::Fault;
use std::time::Duration;

/// Exit code of a command that the program refuses.
const USAGE: i32 = 2;

/// Runs a drawn command. Its exit code must be that of the documentation.
pub fn run(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let interrupt_after = Duration::from_millis(random.doubling(20, 5000));
    let request = Request::draw(config, random);
    let args = if random.percent(70) { request.command() } else { request.attribute() };
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let expected = if request.is_valid { 0 } else { USAGE };
    server.recompress(&args, interrupt_after)?.has_code(&[expected]).map(drop)
}

/// Runs a pass over all pages until it ends, or its disk does. The exit code depends on which is first.
pub fn run_until_end(server: &Server) -> Result<(), Fault> {
    server.recompress(&["recompress", NAME], Duration::from_secs(30)).map(drop)
}

/// Marks pages as idle.
pub fn mark_idle(server: &Server, random: &mut Random) -> Result<(), Fault> {
    server.set_one(random.pick(&["idle=all", "idle=all", "idle=1", "idle=5s"]))?.ok().map(drop)
}

/// A drawn pass.
struct Request {
    /// The option of `disk recompress` that selects pages, and zram's word for it.
    which: Option<(&'static str, &'static str)>,
    threshold_bytes: Option<u16>,
    pages_max: Option<u64>,
    codec: Option<&'static str>,
    priority: Option<u8>,
    threads: u64,
    /// Whether the disk has such a codec, and all values are allowed.
    is_valid: bool,
}

impl Request {
    fn draw(config: &Config, random: &mut Random) -> Self {
        let selections =
            [("--huge", "type=huge"), ("--huge-idle", "type=huge_idle"), ("--idle=1", "type=idle")];
        let wrong_threshold = random.percent(3).then_some(THRESHOLD_END as u16);
        let mut request = Request {
            which: random.percent(50).then(|| random.pick(&selections)),
            threshold_bytes: wrong_threshold.or_else(|| recompression::threshold(random)),
            pages_max: recompression::pages_max(random, config.size_bytes / FRAME),
            codec: None,
            priority: None,
            threads: random.between(1, WORKERS_MAX),
            is_valid: false,
        };
        let codecs = &codecs(config);
        match random.below(5) {
            0 => request.codec = Some(Codec::draw(random).name),
            1 if !codecs.is_empty() => request.codec = Some(random.pick(codecs).name),
            2 => request.priority = Some(random.between(1, 3) as u8),
            3 if !codecs.is_empty() => request.priority = Some(random.between(1, codecs.len() as u64) as u8),
            _ => {}
        }
        let has_codec = match request.codec {
            Some(name) => codecs.iter().any(|codec| codec.name == name),
            None => usize::from(request.priority.unwrap_or(1)) <= codecs.len(),
        };
        request.is_valid = has_codec && wrong_threshold.is_none();
        request
    }

    /// The arguments of `disk recompress`.
    fn command(&self) -> Vec<String> {
        let mut args: Vec<String> =
            vec!["recompress".into(), NAME.into(), format!("--threads={}", self.threads)];
        args.extend(self.which.map(|(option, _)| option.to_string()));
        args.extend(self.threshold_bytes.map(|bytes| format!("--threshold={bytes}")));
        // zram's word takes 0 for a pass that tries no page; the option takes no 0.
        let pages_max = self.pages_max.filter(|pages| *pages > 0);
        args.extend(pages_max.map(|pages| format!("--max-pages={pages}")));
        args.extend(self.codec.map(|name| format!("--codec={name}")));
        args.extend(self.priority.map(|priority| format!("--priority={priority}")));
        args
    }

    /// The arguments of `disk set`, with zram's words.
    fn attribute(&self) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        words.extend(self.which.map(|(_, word)| word.to_string()));
        words.extend(self.threshold_bytes.map(|bytes| format!("threshold={bytes}")));
        words.extend(self.pages_max.map(|pages| format!("max_pages={pages}")));
        words.extend(self.codec.map(|name| format!("algo={name}")));
        words.extend(self.priority.map(|priority| format!("priority={priority}")));
        let words = if words.is_empty() { "all".to_string() } else { words.join(" ") };
        vec!["set".into(), NAME.into(), format!("recompress={words}")]
    }
}

/// The codecs in the order of their priorities: those of `--recompress-after` come first.
fn codecs(config: &Config) -> Vec<Codec> {
    let (after, on_request): (Vec<_>, Vec<_>) =
        config.further_codecs.iter().partition(|further| further.after_s.is_some());
    let in_order = after.into_iter().chain(on_request);
    in_order.map(|further: &FurtherCodec| further.codec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_of_rules_have_the_lowest_priorities() {
        let further =
            |name, after_s| FurtherCodec { codec: Codec { name, level: None, window_bits: None }, after_s };
        let further_codecs = vec![further("deflate", None), further("zstd", Some(2)), further("lz4hc", None)];
        let config = Config { further_codecs, ..Config::draw(0) };
        let names: Vec<_> = codecs(&config).iter().map(|codec| codec.name).collect();
        assert_eq!(names, ["zstd", "deflate", "lz4hc"]);
    }
}

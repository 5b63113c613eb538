//! Commands that compress pages of a disk again: drawn, run, and checked.
//!
//! A pass with a slow codec takes longer than a case, so every command is interrupted after some seconds.

use super::config::{Config, FurtherCodec, WORKERS_MAX};
use super::server::{NAME, Server};
use crate::model::FRAME;
use crate::random::Random;
use crate::recompression::{self, Codec, THRESHOLD_END};
use crate::verdict::Fault;
use pagefold_store::writeback::Which;
use std::time::Duration;

/// Exit code of a command that the program refuses.
const USAGE: i32 = 2;

/// Runs a drawn command, or sets zram's attribute. The exit code must be that of the documentation.
pub fn run(config: &Config, server: &Server, random: &mut Random) -> Result<(), Fault> {
    let interrupt_after = Duration::from_millis(random.doubling(20, 5000));
    let codecs: Vec<_> = codecs(config).into_iter().map(Some).collect();
    let pages = config.size_bytes / FRAME;
    let (request, has_codec) = recompression::request(random, &codecs, pages, WORKERS_MAX);
    let wrong_threshold = random.percent(3).then_some(THRESHOLD_END as u16);
    let is_attribute = random.percent(30);
    let which = match request.which {
        Which::Huge => Some(("huge", "type=huge")),
        Which::HugeIdle => Some(("huge-idle", "type=huge_idle")),
        Which::Idle | Which::NotAccessedFor { .. } => Some(("idle=1", "type=idle")),
        Which::All | Which::Incompressible => None,
    };
    // zram's word takes 0 for a pass that tries no page; the option takes no 0.
    let pages_max = request.pages_max.filter(|pages| is_attribute || *pages > 0);
    let words = |option: &str, word: &str, value: Option<String>| {
        value
            .map(|value| if is_attribute { format!("{word}={value}") } else { format!("--{option}={value}") })
    };
    let which = which.map(|(option, word)| if is_attribute { word.into() } else { format!("--{option}") });
    let threshold = wrong_threshold.or(request.threshold_bytes);
    // The command takes one of the two.
    let names_both = !is_attribute && request.codec.is_some() && request.priority.is_some();
    let drawn = [
        which,
        words("threshold", "threshold", threshold.map(|bytes| bytes.to_string())),
        words("max-pages", "max_pages", pages_max.map(|pages| pages.to_string())),
        words("codec", "algo", request.codec),
        words("priority", "priority", request.priority.map(|priority| priority.to_string())),
    ];
    let drawn: Vec<String> = drawn.into_iter().flatten().collect();
    let threads = format!("--threads={}", request.threads);
    let attribute = format!("recompress={}", if drawn.is_empty() { "all".into() } else { drawn.join(" ") });
    let args: Vec<&str> = match is_attribute {
        true => vec!["set", NAME, &attribute],
        false => ["recompress", NAME, &threads].into_iter().chain(drawn.iter().map(String::as_str)).collect(),
    };
    let expected = if has_codec && wrong_threshold.is_none() && !names_both { 0 } else { USAGE };
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

//! `disk recompress`, and the codecs that pages are recompressed with.

use super::pass::{self, PassArgs};
use crate::cli::numbers;
use clap::Args;
use pagefold_control::config::{CodecConfig, RecompressAfter};
use pagefold_control::error::{CliError, Result};
use pagefold_control::protocol::{Pages, RecompressPass};
use pagefold_control::report::recompress::RecompressPassReport;
use pagefold_control::text;
use pagefold_page::duration;
use pagefold_page::size::Human;
use pagefold_server::disk::AGE_MAX_S;

/// The arguments of `disk recompress`.
#[derive(Debug, Args)]
pub struct RecompressArgs {
    #[command(flatten)]
    pub pass: PassArgs,
    /// Take only pages that take at least so many bytes. A result is kept only if it takes fewer
    #[arg(long, value_name = "BYTES")]
    pub threshold: Option<u16>,
    /// The most pages to try; those that take most memory come first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_pages: Option<u64>,
    /// The codec; one of those that the disk was created with to recompress. Of several levels of it, that of the
    /// lowest priority [default: that of priority 1]
    #[arg(long, short = 'c', value_name = "CODEC", conflicts_with = "priority")]
    pub codec: Option<String>,
    /// The codec, by its priority
    #[arg(long, value_name = "1..3", value_parser = clap::value_parser!(u8).range(1..=3))]
    pub priority: Option<u8>,
    /// Number of threads [default: number of CPUs]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
}

/// Recompresses pages of a disk, and prints the report, also if the pass ended early.
pub fn run(args: &RecompressArgs) -> Result<()> {
    let request = RecompressPass {
        pages: args.pass.pages(|| Ok(Pages::All))?,
        threshold_bytes: args.threshold,
        pages_max: args.max_pages,
        codec: args.codec.clone(),
        priority: args.priority,
        threads: args.threads,
    };
    let report = pass::run(
        &args.pass,
        ["recompressed", "saved"],
        |client, signals, report_progress| client.recompress(&request, signals, report_progress),
        summary,
    )?;
    match report.interrupted {
        false => Ok(()),
        true => Err(CliError::failed("interrupted; the other pages stay as they are")),
    }
}

/// Formats the report on a pass as one line.
fn summary(r: &RecompressPassReport) -> String {
    let [old, new, saved] = [r.old_bytes, r.new_bytes, r.old_bytes.saturating_sub(r.new_bytes)].map(Human);
    let (pages, time) = (numbers::count(r.recompressed_pages), text::time(r.elapsed_ns));
    let mut parts = vec![match r.recompressed_pages {
        0 => "no page became smaller".to_string(),
        _ => format!("recompressed {pages} pages: {old} to {new}, {saved} saved in {time}"),
    }];
    parts.extend(numbers::counts([
        (r.not_smaller_pages, "would not become smaller"),
        (r.changed_pages, "were changed or accessed meanwhile"),
        (r.no_memory_pages, "stayed: no memory for the new form beside the old one"),
        (r.failed_pages, "stayed: they could not be read or compressed"),
    ]));
    parts.join("; ")
}

/// The codecs of `--recompress-after` and `--recompress-codec`, in the order of their priorities, and the rules. The codecs
/// of rules come first: those on request are meant to be denser, and pages only move to a higher priority.
pub fn further_codecs(
    codecs: &[String],
    rules: &[String],
) -> Result<(Vec<CodecConfig>, Vec<RecompressAfter>)> {
    let mut found: Vec<CodecConfig> = Vec::new();
    let mut after: Vec<RecompressAfter> = Vec::new();
    for text in rules {
        let usage = |why: String| CliError::usage(format!("--recompress-after: {why}"));
        let Some((age, codec)) = text.split_once('=') else {
            return Err(usage(format!("'{text}' is not of the form AGE=CODEC, such as 10m=zstd:3")));
        };
        let age_s = duration::parse_s(age).map_err(|e| usage(e.to_string()))?.min(AGE_MAX_S);
        let priority = priority_of(&mut found, "--recompress-after", codec)?;
        if after.iter().any(|rule| rule.priority == priority) {
            return Err(usage(format!("'{codec}' has two ages")));
        }
        after.push(RecompressAfter { age_s, priority });
    }
    for text in codecs {
        priority_of(&mut found, "--recompress-codec", text)?;
    }
    Ok((found, after))
}

/// Splits `CODEC` or `CODEC:LEVEL`.
pub fn name_and_level<'t>(option: &str, text: &'t str) -> Result<(&'t str, Option<i32>)> {
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((name, level)) => {
            let bad = || CliError::usage(format!("{option}: '{level}' is not a level"));
            Ok((name, Some(level.parse().map_err(|_| bad())?)))
        }
    }
}

/// The priority of a codec among `found`, to which it is added if it is not there.
fn priority_of(found: &mut Vec<CodecConfig>, option: &str, text: &str) -> Result<u8> {
    const MOST: usize = 3;
    let (name, level) = name_and_level(option, text)?;
    let mut codec = CodecConfig { name: name.to_string(), level, dictionary: None, window_bits: None };
    pagefold_server::disk::check_codec(&codec)
        .map_err(|e| CliError::new(e.exit, format!("{option}: {e}")))?;
    codec.level = codec.level.or_else(|| pagefold_server::disk::default_level(name));
    let at = found.iter().position(|known| *known == codec).unwrap_or_else(|| {
        found.push(codec);
        found.len() - 1
    });
    match at {
        0..MOST => Ok(at as u8 + 1),
        _ => Err(CliError::usage(format!("{option}: a disk has at most {MOST} codecs to recompress with"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::error::Exit;

    fn strings(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| text.to_string()).collect()
    }

    #[test]
    fn codecs_have_priorities_in_the_order_of_their_options() {
        let (codecs, rules) =
            further_codecs(&strings(&["zstd", "deflate:9"]), &strings(&["10m=zstd:3", "1h=zstd:12"]))
                .unwrap();
        let levels: Vec<_> = codecs.iter().map(|c| (c.name.as_str(), c.level)).collect();
        assert_eq!(levels, [("zstd", Some(3)), ("zstd", Some(12)), ("deflate", Some(9))]);
        let rules: Vec<_> = rules.iter().map(|r| (r.age_s, r.priority)).collect();
        assert_eq!(rules, [(600, 1), (3600, 2)]);
        assert_eq!(further_codecs(&strings(&["zstd:-5"]), &[]).unwrap().0[0].level, Some(-5));
    }

    #[test]
    fn wrong_codecs_and_ages_are_refused() {
        for bad in ["10m", "=zstd", "10m=", "10m=zstd:x", "10m=nosuch", "old=zstd", "10m=zstd:99"] {
            let error = further_codecs(&[], &strings(&[bad])).unwrap_err();
            assert_eq!(error.exit, Exit::Usage, "{bad}: {error}");
        }
        let (_, rules) = further_codecs(&[], &strings(&["3h=zstd"])).unwrap();
        assert_eq!(rules[0].age_s, AGE_MAX_S, "a greater age counts as the greatest");
        assert!(further_codecs(&[], &strings(&["1m=zstd", "2m=zstd:3"])).is_err());
        let four = strings(&["zstd:1", "zstd:2", "zstd:3", "deflate"]);
        assert!(further_codecs(&four, &[]).unwrap_err().message.contains("at most 3"));
    }

    #[test]
    fn the_summary_says_what_became_of_the_pages() {
        let mut report = RecompressPassReport {
            recompressed_pages: 1000,
            old_bytes: 3 << 20,
            new_bytes: 2 << 20,
            not_smaller_pages: 5,
            changed_pages: 0,
            no_memory_pages: 0,
            failed_pages: 0,
            interrupted: false,
            elapsed_ns: 1_200_000_000,
        };
        let text = summary(&report);
        assert!(text.ends_with("3 MiB to 2 MiB, 1 MiB saved in 1.2 s; 5 would not become smaller"), "{text}");
        report.recompressed_pages = 0;
        assert!(summary(&report).starts_with("no page became smaller; 5"));
    }
}

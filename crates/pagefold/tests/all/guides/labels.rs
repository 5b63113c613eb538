//! Finds the labels in the output of a command: the parts that stay the same when the values change.

use std::collections::BTreeSet;

/// The labels that a sample shows and `actual` does not.
///
/// A label is the text before two spaces in a row such as `ratio          2.61`, a heading above indented rows, or the
/// title of a column. Rows that begin with a value have none.
pub fn missing(sample: &[String], actual: &str) -> Vec<String> {
    let actual: Vec<String> = actual.lines().map(str::to_string).collect();
    let printed = labels(&actual);
    labels(sample).into_iter().filter(|label| !printed.contains(label)).collect()
}

fn labels(lines: &[String]) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for (number, line) in lines.iter().enumerate() {
        let text = line.trim();
        let is_heading = is_indented(lines.get(number + 1)) && !is_indented(Some(line));
        if is_header(text) {
            labels.extend(text.split_whitespace().map(str::to_string));
        } else if let Some((label, _)) = text.split_once("  ") {
            labels.insert(label.to_string());
        } else if is_heading {
            labels.insert(text.split(':').next().unwrap_or_default().to_string());
        }
    }
    labels.retain(|label| is_label(label));
    labels
}

fn is_indented(line: Option<&String>) -> bool {
    line.is_some_and(|line| line.starts_with("  ") && !line.trim().is_empty())
}

/// Whether a line has the titles of columns: at least two words of capital letters.
fn is_header(text: &str) -> bool {
    let mut words = text.split_whitespace();
    text.contains(' ') && words.all(|word| word.chars().all(|c| c.is_ascii_uppercase()))
}

fn is_label(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphabetic() || " -".contains(c))
}

#[test]
fn labels_are_compared_and_values_are_not() {
    let lines = |text: &str| text.lines().map(str::to_string).collect::<Vec<_>>();
    let sample = lines(
        "scratch  4 GiB\n  server RSS     105 MiB\n...\nLatency of reads: p50 <= 1 us\n  <  128 ns   13  ##\nNAME  SIZE\n",
    );
    let actual =
        "scratch  8 GiB\n  server RSS  1 B\nLatency of reads: none\n  < 1 ns  7\nNAME  CODEC  SIZE\n";
    assert_eq!(missing(&sample, actual), Vec::<String>::new());
    let actual = "scratch  8 GiB\n  RSS  1 B\nLatency: none\n  < 1 ns  7\nNAME  CODEC\n";
    assert_eq!(missing(&sample, actual), ["Latency of reads", "SIZE", "server RSS"]);
}

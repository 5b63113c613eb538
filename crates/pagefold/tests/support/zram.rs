//! Transcripts of zram's interface, as `tests/zram/run.sh` prints them, and their comparison.
//!
//! `tests/zram/README.md` describes the steps, and states the rules for the columns of statistics.

const PAGE: u64 = 4096;

/// One step with its output and its result.
#[derive(Debug, PartialEq)]
pub struct Step<'a> {
    /// The name of the steps' file, and the step.
    pub name: (&'a str, &'a str),
    /// The lines of output without their prefix.
    pub output: Vec<&'a str>,
    /// `ok`, or `error: ` and the text of errno.
    pub result: &'a str,
}

/// The steps of a transcript. Panics if its end is missing or it has another form.
pub fn steps(transcript: &str) -> Vec<Step<'_>> {
    let mut steps: Vec<Step<'_>> = Vec::new();
    let mut file = "";
    for line in transcript.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            file = name;
        } else if let Some(name) = line.strip_prefix("> ") {
            steps.push(Step { name: (file, name), output: Vec::new(), result: "" });
        } else {
            let step = steps.last_mut().unwrap_or_else(|| panic!("{line:?} before the first step"));
            assert!(step.result.is_empty(), "{line:?} after the result of {:?}", step.name);
            match line.strip_prefix("| ") {
                Some(output) => step.output.push(output),
                None => step.result = line,
            }
        }
    }
    if let Some(step) = steps.iter().find(|step| step.result.is_empty()) {
        panic!("{:?} has no result", step.name);
    }
    steps
}

/// The differences between two transcripts, one line for each step that differs.
pub fn differences(reference: &str, other: &str) -> Vec<String> {
    differences_except(reference, other, &[])
}

/// The differences but those that `allowed` names: pairs of a file, or `*`, and the beginning of a step. An entry that
/// names no difference is one itself.
pub fn differences_except(reference: &str, other: &str, allowed: &[(&str, &str)]) -> Vec<String> {
    let (reference, other) = (steps(reference), steps(other));
    let mut is_used = vec![false; allowed.len()];
    let mut is_allowed = |step: &Step<'_>| {
        let (file, text) = step.name;
        let names = |(of, begin): &(&str, &str)| (*of == "*" || *of == file) && text.starts_with(begin);
        let mut found = false;
        for (used, _) in is_used.iter_mut().zip(allowed).filter(|(_, entry)| names(entry)) {
            (*used, found) = (true, true);
        }
        found
    };
    let mut differences: Vec<_> = reference
        .iter()
        .zip(&other)
        .filter_map(|(step, other)| difference(step, other).filter(|_| !is_allowed(step)))
        .collect();
    if reference.len() != other.len() {
        differences.push(format!("{} steps instead of {}", other.len(), reference.len()));
    }
    let unused = allowed.iter().zip(is_used).filter(|(_, used)| !used);
    differences.extend(unused.map(|(entry, _)| format!("no step that {entry:?} names differs")));
    differences
}

fn difference(reference: &Step<'_>, other: &Step<'_>) -> Option<String> {
    let is_equal = reference.name == other.name
        && reference.result == other.result
        && if reference.name.1.starts_with("columns ") {
            are_columns_equal(&reference.output, &other.output)
        } else {
            reference.output == other.output
        };
    (!is_equal).then(|| format!("{reference:?}, but {other:?}"))
}

/// A line of `columns`: a name and a number.
fn column<'a>(line: &&'a str) -> Option<(&'a str, u64)> {
    let (name, number) = line.split_once(' ')?;
    Some((name, number.parse().ok()?))
}

fn are_columns_equal(reference: &[&str], other: &[&str]) -> bool {
    let columns = |lines: &[&'_ str]| lines.iter().map(column).collect::<Option<Vec<_>>>().map(|c| c.len());
    if columns(reference) != Some(reference.len()) || columns(other) != Some(reference.len()) {
        return false;
    }
    let number =
        |wanted| other.iter().filter_map(column).find(|(name, _)| *name == wanted).map_or(0, |(_, n)| n);
    reference.iter().zip(other).all(|(reference, other)| match (column(reference), column(other)) {
        (Some((name, reference)), Some((other_name, other))) => {
            name == other_name
                && match name {
                    "compr_data_size" => {
                        is_zero_in_both_or_neither(reference, other)
                            && other <= 2 * reference
                            && reference <= 2 * other
                    }
                    "mem_used_total" => is_pool_size(reference, other) && other >= number("compr_data_size"),
                    "mem_used_max" => is_pool_size(reference, other) && other >= number("mem_used_total"),
                    "pages_compacted" => true,
                    "failed_reads" | "failed_writes" => is_zero_in_both_or_neither(reference, other),
                    _ => reference == other,
                }
        }
        _ => false,
    })
}

fn is_zero_in_both_or_neither(reference: u64, other: u64) -> bool {
    (reference == 0) == (other == 0)
}

/// Whether a number of bytes of memory is plausible: a pool may be denser than the reference, and not much larger.
fn is_pool_size(reference: u64, other: u64) -> bool {
    other.is_multiple_of(PAGE) && is_zero_in_both_or_neither(reference, other) && other <= 2 * reference
}

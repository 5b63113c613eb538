//! The script of zram's interface (`tests/zram/README.md`), run against the zram of this machine's kernel.

use crate::support::zram::{differences, differences_except, steps};
use crate::support::{Sandbox, have, no_loop};
use crate::support::{is_root, wait_until};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zram")
}

/// The reason that the script cannot run here.
fn missing() -> Option<&'static str> {
    if !is_root() {
        return Some("needs root to add a zram device");
    }
    (!Path::new("/sys/class/zram-control/hot_add").exists()).then_some("the kernel has no zram")
}

/// The zram devices of this machine.
fn devices() -> BTreeSet<String> {
    let names = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.into_string().ok()).filter(|name| name.starts_with("zram")).collect()
}

/// Runs the files of steps, and returns the transcript. Fails unless the script has removed its devices.
fn run(steps: &Path) -> String {
    let before = devices();
    // A terminated script still removes its devices.
    let mut command = Command::new("timeout");
    command.args(["--signal=TERM", "600", "sh"]).arg(folder().join("run.sh")).arg(steps);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "run.sh: {}: {errors}", output.status);
    assert_eq!(errors, "");
    // Another process may have added a device meanwhile, and will remove it.
    wait_until("no added device is left", || devices().is_subset(&before));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_kernels_zram_behaves_as_its_transcript_says() {
    if let Some(why) = missing() {
        return pagefold_testkit::skipped!("the_kernels_zram_behaves_as_its_transcript_says: {why}");
    }
    let transcript = run(&folder().join("steps"));
    let steps = steps(&transcript);
    assert!(steps.iter().filter(|step| step.name.1 == "add").all(|step| step.result == "ok"), "{transcript}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let reference = folder().join(format!("transcripts/local-{}.txt", release.trim()));
    // Without a transcript of this kernel the test has shown that the steps come to their end.
    let Ok(reference) = std::fs::read_to_string(reference) else { return };
    let differences = differences(&reference, &transcript);
    assert!(differences.is_empty(), "{} steps differ:\n{}", differences.len(), differences.join("\n"));
}

/// The steps that may differ from Linux 7.2: the first column of the table in the guide.
fn allowed_differences(guide: &str) -> Vec<(&str, &str)> {
    let table = guide.lines().skip_while(|line| !line.starts_with("| steps |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let columns = rows.filter_map(|row| row.split('|').nth(1));
    let entries = columns.flat_map(|column| column.split('`').skip(1).step_by(2));
    entries.map(|entry| entry.split_once(": ").unwrap()).collect()
}

#[test]
fn pagefold_answers_as_linux_7_2_does_but_for_the_stated_differences() {
    let test = "pagefold_answers_as_linux_7_2_does_but_for_the_stated_differences";
    let missing = ["losetup", "blkdiscard"].iter().find(|t| !have(t)).map(|t| format!("needs {t}"));
    if let Some(why) = no_loop().map(str::to_string).or(missing) {
        return pagefold_testkit::skipped!("{test}: {why}");
    }
    let s = Sandbox::new();
    let (script, steps) = (folder().join("run.sh"), folder().join("steps"));
    let ran = s.run(&format!("-q zram-shell --rm -- sh {} {}", script.display(), steps.display()));
    assert!(ran.code == 0 && ran.err.is_empty(), "{}: {}", ran.code, ran.err);
    assert!(s.left().is_empty(), "{:?}", s.left());
    let ours = std::fs::read_to_string(folder().join("transcripts/pagefold.txt")).unwrap();
    let changed = differences(&ours, &ran.out);
    assert!(changed.is_empty(), "{} steps differ from before:\n{}", changed.len(), changed.join("\n"));
}

#[test]
fn pagefolds_transcript_differs_from_that_of_linux_7_2_as_the_guide_says_and_no_further() {
    let read = |name: &str| std::fs::read_to_string(folder().join(name)).unwrap();
    let (kernels, ours) = (read("transcripts/linux-7.2-all.txt"), read("transcripts/pagefold.txt"));
    let guide = read("../../../../docs/zram.md");
    let allowed = allowed_differences(&guide);
    assert!(allowed.len() > 10);
    let differences = differences_except(&kernels, &ours, &allowed);
    assert!(differences.is_empty(), "{} steps differ:\n{}", differences.len(), differences.join("\n"));
}

/// The steps that a kernel of the same version answers differently because it lacks the algorithms lzo, lzo-rle and 842,
/// recompression and the size classes.
const BY_CONFIGURATION: [(&str, &str); 9] = [
    ("*", "read comp_algorithm"),
    ("*", "read_pieces comp_algorithm"),
    ("*", "write comp_algorithm lzo"),
    ("comp_algorithm", "write comp_algorithm 842"),
    ("algorithm_params", "write algorithm_params priority="),
    ("recompress", ""),
    ("statistics", "classes"),
    ("statistics", "mode classes"),
    ("statistics", "write classes"),
];

#[test]
fn the_kernel_with_all_of_zram_behaves_as_debians_does_in_what_both_have() {
    let read = |name: &str| std::fs::read_to_string(folder().join("transcripts").join(name)).unwrap();
    let (all, debians) = (read("linux-7.2-all.txt"), read("linux-7.2.txt"));
    let differences = differences_except(&all, &debians, &BY_CONFIGURATION);
    assert!(differences.is_empty(), "{} steps differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn each_transcript_has_all_steps_in_their_order() {
    let mut written: Vec<(String, String)> = Vec::new();
    let mut files: Vec<_> =
        std::fs::read_dir(folder().join("steps")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in &files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_string();
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        written.extend(lines.map(|line| (name.clone(), line.to_string())));
    }
    let mut transcripts = 0;
    for entry in std::fs::read_dir(folder().join("transcripts")).unwrap() {
        let path = entry.unwrap().path();
        let transcript = std::fs::read_to_string(&path).unwrap();
        let steps = steps(&transcript);
        let names: Vec<_> = steps.iter().map(|step| (step.name.0.into(), step.name.1.into())).collect();
        let differs = written.iter().zip(&names).find(|(written, name)| written != name);
        assert_eq!((differs, names.len()), (None, written.len()), "{}: run the steps again", path.display());
        transcripts += 1;
    }
    assert!(transcripts >= 3, "{transcripts} transcripts");
}

const MM_STAT: [(&str, u64); 6] = [
    ("orig_data_size", 131_072),
    ("compr_data_size", 86_035),
    ("mem_used_total", 139_264),
    ("mem_used_max", 143_360),
    ("pages_compacted", 0),
    ("huge_pages", 16),
];

/// A transcript with the columns above, of which one has another value.
fn transcript(changed: &str, value: u64) -> String {
    let line =
        |(name, number): (&str, u64)| format!("| {name} {}\n", if name == changed { value } else { number });
    format!("== x\n> columns mm_stat\n{}ok\n", MM_STAT.map(line).concat())
}

#[test]
fn transcripts_are_compared_by_the_rule_of_each_column() {
    let reference = transcript("", 0);
    let accepts = |changed, value| differences(&reference, &transcript(changed, value)).is_empty();
    for (name, value) in MM_STAT {
        assert!(accepts(name, value), "{name}");
    }
    for (name, value) in [
        ("compr_data_size", 70_000),
        ("compr_data_size", 100_000),
        ("mem_used_total", 90_112),
        ("mem_used_max", 139_264),
        ("pages_compacted", 3),
    ] {
        assert!(accepts(name, value), "{name} {value}");
    }
    for (name, value) in [
        ("orig_data_size", 131_073),
        ("huge_pages", 15),
        ("compr_data_size", 0),
        ("compr_data_size", 43_000),
        ("compr_data_size", 139_265),
        ("mem_used_total", 139_265),
        ("mem_used_total", 81_920),
        ("mem_used_total", 147_456),
        ("mem_used_max", 135_168),
        ("mem_used_max", 290_816),
    ] {
        assert!(!accepts(name, value), "{name} {value}");
    }
    let other = reference.replace("ok", "error: Invalid argument");
    assert_eq!(differences(&reference, &other).len(), 1);
    let longer = format!("{reference}> read disksize\n| 0\nok\n");
    assert_eq!(differences(&reference, &longer), ["2 steps instead of 1"]);
    let changed = longer.replace("| 0", "| 1");
    assert_eq!(differences(&longer, &changed).len(), 1);
    assert_eq!(differences(&reference, &reference.replace("| huge_pages 16\n", "")).len(), 1);
}

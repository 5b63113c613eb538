//! Invariant: whatever a small image claims, the tools that read all of it (`check --strict`, `show`, `tar`, `extract`, and
//! the list of a start) end within a budget of CPU time and of reads, and stay within the memory budget. A check that did
//! not look at everything says so.
//!
//! The input chooses the fields of an image by rules: see `hostile`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pagefold_fuzz::hostile::{self, Choices, WHOLE, counted, within};
use pagefold_fuzz::image::check_budget;
use pagefold_fuzz::media::EmptyFolder;
use pagefold_image::extract::{ExtractOptions, extract};
use pagefold_image::startup::{PrefetchCounters, StartList, prefetch};
use pagefold_image::tar::{TarOptions, write};
use pagefold_image::tree_stats::TreeStats;
use pagefold_image::walk::Limits;
use pagefold_image_check::{CheckOptions, check};
use pagefold_sys::beneath::Folder;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Bytes and files that an extraction and an archive may have: their own limits end what the limit of work allows.
const OUTPUT_BYTES: u64 = 4 << 20;
const OUTPUT_FILES: u64 = 64;

fn extract_to(image: &pagefold_image::Image, target: &Path) {
    let folder = Folder::open(target).expect("a directory");
    let options = ExtractOptions {
        threads: 1,
        max_bytes: Some(OUTPUT_BYTES),
        max_inodes: OUTPUT_FILES,
        ..ExtractOptions::default()
    };
    counted(extract(image, &folder, &[], &options, &AtomicBool::new(false), &|_| ()));
}

fuzz_target!(|input: &[u8]| {
    let Some(image) = counted(hostile::open(hostile::image(&mut Choices::new(input)))) else { return };
    for strict in [false, true] {
        let options = CheckOptions { threads: 1, strict, ..CheckOptions::default() };
        if let Some(report) = counted(within(WHOLE, "check", || check(&image, &options, &|_| ()))) {
            assert!(report.complete || report.findings.errors() > 0, "an incomplete check without a finding");
        }
    }
    counted(within(WHOLE, "show", || TreeStats::of_image(&image, &Limits::default())));
    let options = TarOptions { max_bytes: OUTPUT_BYTES, max_members: OUTPUT_FILES };
    counted(within(WHOLE, "tar", || write(&image, &[], &options, std::io::sink())));
    let target = EmptyFolder::new();
    within(WHOLE, "extract", || extract_to(&image, &target.0));
    let list = StartList::parse(b"/\n/aaa\n/aab\t0\t4611686018427387904\n/x\n/aaa/aaa\n");
    within(WHOLE, "prefetch", || {
        prefetch(&image, &list, &PrefetchCounters::default(), &AtomicBool::new(false))
    });
    check_budget(&image);
});

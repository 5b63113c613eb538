//! Images with changed fields: the strict check ends without a panic and within the budget, whatever it finds.

use super::options;
use super::patch::Patch;
use crate::support::features::features;
use pagefold_image::walk::Limits;
use pagefold_image::{Image, Options};
use pagefold_image_check::{CheckOptions, check};

/// Changed images of each feature image.
const ROUNDS: u64 = 12;
/// Values at limits of fields.
const SPECIAL: [u64; 12] =
    [0, 1, 2, 0x1f, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

/// A sequence of numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn changed_images_end_the_check_without_a_panic() {
    let (mut checked, mut found) = (0, 0);
    for feature in features() {
        let original = Patch::new(&feature.name);
        let places = original.places();
        for round in 0..ROUNDS {
            let mut numbers = Numbers(round << 32 | feature.bytes.len() as u64);
            let mut patch = original.clone();
            for _ in 0..=numbers.next(3) {
                let start = places[numbers.next(places.len() as u64) as usize] + numbers.next(72) as usize;
                let width = 1 << numbers.next(4);
                let value = match numbers.next(2) {
                    0 => SPECIAL[numbers.next(SPECIAL.len() as u64) as usize],
                    _ => numbers.next(1 << 31),
                };
                if let Some(field) = patch.bytes.get_mut(start..start + width) {
                    field.copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
            let tight = Options { memory_bytes: 12 << 20, ..options() };
            let Ok(image) = Image::open(patch.medium(), patch.options(tight)) else { continue };
            let limits = Limits { names: 2000, ..Limits::default() };
            let options = CheckOptions { threads: 1, limits, strict: true };
            checked += 1;
            if let Ok(report) = check(&image, &options, &|_| ()) {
                found += u64::from(report.findings.recorded().iter().any(|finding| finding.rule.is_some()));
            }
            let budget = image.stats().budget;
            assert!(budget.peak_bytes <= budget.limit_bytes, "{}, round {round}: {budget:?}", feature.name);
        }
    }
    assert!(found > checked / 4, "{found} of {checked} changed images broke a rule");
}

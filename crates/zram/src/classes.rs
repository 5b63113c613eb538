//! The size classes of a disk's pool as text, in the format of zsmalloc's `classes` in debugfs.
//!
//! The pool of a disk has other classes, and no groups of pages with a fullness each: the objects of a class lie one
//! after the other, over the ends of pages. So these columns have a meaning that is as close as possible:
//!
//! | column | value |
//! |---|---|
//! | class | the size divided by 8 |
//! | 10% to 100% | all pages of the class in one column: by the share of its places that have an object |
//! | obj_allocated | places: the objects that fit in the pages of the class |
//! | obj_used | objects |
//! | pages_used | pages |
//! | pages_per_zspage | 1 |
//! | freeable | pages that the objects would not need without gaps between them |
//!
//! Classes without pages are left out.

use pagefold_control::report::disk::ClassReport;
use pagefold_page::PAGE_SIZE;
use std::fmt::Write;

/// The greatest share of used places in each column, per cent. The last two are for less than all, and for all.
const FULLNESS: [u64; 11] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 99, 100];

/// The numbers of one row: of a class, or of all classes.
#[derive(Default)]
struct Row {
    pages_by_fullness: [u64; FULLNESS.len()],
    places: u64,
    objects: u64,
    pages: u64,
    freeable: u64,
}

impl Row {
    fn of(class: &ClassReport) -> Self {
        let page = PAGE_SIZE as u64;
        let places = (class.pages * page).checked_div(class.size_bytes).unwrap_or(0).max(class.objects);
        let needed = (class.objects * class.size_bytes).div_ceil(page);
        let mut row = Row {
            places,
            objects: class.objects,
            pages: class.pages,
            freeable: class.pages.saturating_sub(needed),
            ..Row::default()
        };
        row.pages_by_fullness[column(class.objects, places)] = class.pages;
        row
    }

    fn add(&mut self, row: &Row) {
        self.pages_by_fullness.iter_mut().zip(row.pages_by_fullness).for_each(|(sum, pages)| *sum += pages);
        self.places += row.places;
        self.objects += row.objects;
        self.pages += row.pages;
        self.freeable += row.freeable;
    }

    /// Appends the columns after the size. `pages_per_group` is empty in the last row.
    fn push(&self, text: &mut String, pages_per_group: &str) {
        let Row { pages_by_fullness, places, objects, pages, freeable } = self;
        let numbers = pages_by_fullness.iter().map(|pages| format!("{pages:>9} "));
        text.extend(numbers);
        // Formatting into a string does not fail.
        let _ = writeln!(text, "{places:>13} {objects:>10} {pages:>10} {pages_per_group:>16} {freeable:>8}");
    }
}

/// The column of a class with so many objects and places.
fn column(objects: u64, places: u64) -> usize {
    if objects >= places {
        return FULLNESS.len() - 1;
    }
    let is_in = |most: &u64| objects * 100 <= places * most;
    FULLNESS.iter().position(is_in).unwrap_or(FULLNESS.len() - 2).min(FULLNESS.len() - 2)
}

/// Formats the classes.
pub fn text(classes: &[ClassReport]) -> String {
    let mut text = format!(" {:>5} {:>5}", "class", "size");
    FULLNESS.iter().for_each(|most| text.push_str(&format!(" {:>9}", format!("{most}%"))));
    let names = ["obj_allocated", "obj_used", "pages_used", "pages_per_zspage", "freeable"];
    let [places, objects, pages, pages_per_group, freeable] = names;
    text.push_str(&format!(" {places:>13} {objects:>10} {pages:>10} {pages_per_group:>16} {freeable:>8}\n"));
    let mut all = Row::default();
    for class in classes {
        text.push_str(&format!(" {:>5} {:>5} ", class.size_bytes / 8, class.size_bytes));
        let row = Row::of(class);
        row.push(&mut text, "1");
        all.add(&row);
    }
    text.push_str(&format!("\n {:>5} {:>5} ", "Total", ""));
    all.push(&mut text, "");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(size_bytes: u64, objects: u64, pages: u64) -> ClassReport {
        ClassReport { size_bytes, objects, pages, unused_bytes: pages * 4096 - objects * size_bytes }
    }

    #[test]
    fn the_text_has_the_form_of_zsmallocs() {
        let text = text(&[class(64, 3, 1), class(4104, 16, 17)]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                " class  size       10%       20%       30%       40%       50%       60%       70%       80%       \
                 90%       99%      100% obj_allocated   obj_used pages_used pages_per_zspage freeable",
                "     8    64         1         0         0         0         0         0         0         0         \
                 0         0         0            64          3          1                1        0",
                "   513  4104         0         0         0         0         0         0         0         0         \
                 0         0        17            16         16         17                1        0",
                "",
                " Total               1         0         0         0         0         0         0         0         \
                 0         0        17            80         19         18                         0",
            ]
        );
    }

    #[test]
    fn a_class_is_in_the_column_of_its_fullness() {
        for (objects, expected) in
            [(0, 0), (100, 0), (101, 1), (500, 4), (900, 8), (901, 9), (999, 9), (1000, 10)]
        {
            assert_eq!(column(objects, 1000), expected, "{objects}");
        }
        assert_eq!(column(0, 0), 10);
        // Half of the 10 pages would do.
        assert_eq!(Row::of(&class(1024, 20, 10)).freeable, 5);
        assert_eq!(Row::of(&class(1024, 21, 10)).freeable, 4);
    }
}

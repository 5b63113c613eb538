//! The table of size classes of `disk show --classes`.

use crate::cli::numbers;
use crate::cli::page::Page;
use pagefold_control::report::disk::ClassReport;
use pagefold_page::size::Human;

/// Formats the size classes as a section with a line for each, and one for all.
pub fn render(classes: &[ClassReport], colours: bool) -> String {
    let mut page = Page::new(colours, 0);
    page.heading("Size classes");
    page.push(&line(["size", "objects", "pages", "unused"].map(str::to_string)));
    let sum = |field: fn(&ClassReport) -> u64| classes.iter().map(field).sum();
    let cells = |size: String, objects, pages, unused| {
        [size, numbers::count(objects), numbers::count(pages), Human(unused).to_string()]
    };
    for c in classes {
        page.push(&line(cells(numbers::count(c.size_bytes), c.objects, c.pages, c.unused_bytes)));
    }
    let all = cells("all".to_string(), sum(|c| c.objects), sum(|c| c.pages), sum(|c| c.unused_bytes));
    page.push(&line(all));
    page.into_text()
}

fn line([size, objects, pages, unused]: [String; 4]) -> String {
    format!("  {size:>6} {objects:>14} {pages:>14} {unused:>12}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_lines_and_the_last_line_is_their_sum() {
        let class = |size_bytes, objects, pages, unused_bytes| ClassReport {
            size_bytes,
            objects,
            pages,
            unused_bytes,
        };
        let text = "Size classes
    size        objects          pages       unused
      24            100              1     1.66 KiB
    4104            200            201     2.44 KiB
     all            300            202     4.09 KiB
";
        assert_eq!(render(&[class(24, 100, 1, 1696), class(4104, 200, 201, 2496)], false), text);
        assert!(render(&[], false).ends_with("     all              0              0          0 B\n"));
    }
}

//! The values of `--export`, made from the table of exports.

use clap::ValueEnum;
use clap::builder::PossibleValue;
use pagefold_control::export_kind::ExportKind;
use std::sync::LazyLock;

/// A value of `--export`; `None`: the first export that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportArg(pub Option<ExportKind>);

impl ExportArg {
    /// The first export that works.
    pub const AUTO: ExportArg = ExportArg(None);
}

impl ValueEnum for ExportArg {
    fn value_variants<'a>() -> &'a [Self] {
        static VALUES: LazyLock<Vec<ExportArg>> = LazyLock::new(|| {
            let kinds = ExportKind::ALL.into_iter().map(Some);
            std::iter::once(None).chain(kinds).map(ExportArg).collect()
        });
        &VALUES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self.0 {
            None => ("auto", "The first of the others that can be used here".to_string()),
            Some(kind) => {
                let facts = kind.facts();
                (facts.name, sentence(&format!("{}; needs {}", facts.access, facts.needs)))
            }
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// A text that begins with a capital letter and has no marks of Markdown.
fn sentence(text: &str) -> String {
    let mut letters = text.chars().filter(|letter| *letter != '`');
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

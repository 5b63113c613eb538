//! The sections of manual pages that are not options: attributes, codecs, examples, exit codes, files, environment.
//!
//! The long help has them as plain text in one form, which this module turns into roff: a heading is a line that ends
//! in a colon, an entry is a line that is indented by two, and its description follows two spaces or on deeper lines.
//! An indented line that has neither is running text. (clap_mangen would put all of it into one paragraph.)

/// Converts the text after the options of a long help into sections.
pub fn sections(help: &str) -> String {
    let mut roff = String::new();
    let mut lines = help.lines().peekable();
    let (mut is_example, mut is_after_gap) = (false, false);
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        let next_indent = lines.peek().map_or(0, |next| next.len() - next.trim_start().len());
        match text.split_once("  ") {
            _ if text.is_empty() => {}
            _ if indent == 0 => {
                let heading = text.trim_end_matches(':');
                is_example = heading == "Examples";
                roff.push_str(&format!(".SH \"{}\"\n", section_name(heading)));
            }
            _ if is_example => roff.push_str(&format!(".nf\n{}\n.fi\n", escaped(text))),
            Some((entry, meaning)) if indent == 2 => {
                let (entry, meaning) = (escaped(entry), escaped(meaning.trim_start()));
                roff.push_str(&format!(".TP\n\\fB{entry}\\fR\n{meaning}\n"));
            }
            _ if indent == 2 && next_indent > 2 => {
                roff.push_str(&format!(".TP\n\\fB{}\\fR\n", escaped(text)));
            }
            _ => {
                let paragraph = if indent == 2 && is_after_gap { ".PP\n" } else { "" };
                roff.push_str(&format!("{paragraph}{}\n", escaped(text)));
            }
        }
        is_after_gap = text.is_empty();
    }
    roff
}

/// The name that man(7) gives to a section.
fn section_name(heading: &str) -> String {
    match heading {
        "Exit codes" => "EXIT STATUS".to_string(),
        other => other.to_uppercase(),
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with one of these is a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_the_help_becomes_a_section() {
        let help = "Exit codes:\n  0  done\n\nFiles:\n  /run/x     the folder of root,\n             and more\n\n  It has a\n  \
                    lock.\n\nAttributes:\n  size (bytes)\n      size of a-b\n\nExamples:\n  run .x --y";
        let wanted = ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\ndone\n.SH \"FILES\"\n.TP\n\\fB/run/x\\fR\nthe folder of \
                      root,\nand more\n.PP\nIt has a\nlock.\n.SH \"ATTRIBUTES\"\n.TP\n\\fBsize (bytes)\\fR\nsize of \
                      a\\-b\n.SH \"EXAMPLES\"\n.nf\nrun .x \\-\\-y\n.fi\n";
        assert_eq!(sections(help), wanted);
        assert_eq!(sections("  .x  y"), ".TP\n\\fB\\&.x\\fR\ny\n");
    }
}

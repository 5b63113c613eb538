//! Cuts a document into its code blocks, and refuses blocks that no test would check.

/// How a block is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Compiled and run by the crate `guides`.
    Rust,
    /// Run by the tests of `crates/python`.
    Python,
    /// Commands, which are run.
    Sh,
    /// Commands behind a prompt, which are run, and sample output.
    Console,
    /// Not checked.
    Text,
}

/// A fenced code block.
#[derive(Debug)]
pub struct Block {
    /// The number of its first line of code.
    pub line: usize,
    pub language: Language,
    /// Whether the block is marked as one that cannot run in a test.
    pub no_run: bool,
    pub code: Vec<String>,
}

/// A document: its code blocks, its text, and the faults by which a block would escape the tests.
#[derive(Debug, Default)]
pub struct Document {
    pub blocks: Vec<Block>,
    /// The lines outside of blocks, with their numbers.
    pub prose: Vec<(usize, String)>,
    pub faults: Vec<String>,
}

/// A fence that is open.
struct Fence {
    indent: usize,
    marker: String,
}

impl Document {
    pub fn parse(text: &str) -> Self {
        let mut document = Document::default();
        let mut fence: Option<Fence> = None;
        // Lines that belong to a list item are indented this much.
        let mut list_indent = 0;
        let mut is_after_blank = true;
        for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line)) {
            let indent = line.len() - line.trim_start().len();
            if let Some(open) = &fence {
                if line.trim() == open.marker {
                    fence = None;
                } else if let Some(block) = document.blocks.last_mut() {
                    block.code.push(line.get(open.indent.min(indent)..).unwrap_or_default().to_string());
                }
                continue;
            }
            let content = line.trim_start();
            if !content.is_empty() && indent < list_indent {
                list_indent = 0;
            }
            if let Some(width) = list_marker(content) {
                list_indent = indent + width;
            } else if is_after_blank && !content.is_empty() && indent >= list_indent + 4 {
                document.faults.push(format!("line {number}: an indented code block; use a fence"));
            }
            is_after_blank = content.is_empty();
            if content.starts_with("```") || content.starts_with("~~~") {
                let marker = content.chars().take_while(|c| content.starts_with(*c)).collect::<String>();
                document.open(number, content.trim_start_matches(['`', '~']));
                fence = Some(Fence { indent, marker });
            } else {
                document.prose.push((number, line.to_string()));
            }
        }
        if fence.is_some() {
            document.faults.push("the last fence is not closed".into());
        }
        document
    }

    fn open(&mut self, line: usize, info: &str) {
        let mut words = info.split([' ', ',']).filter(|word| !word.is_empty());
        let language = match words.next() {
            Some("rust") => Language::Rust,
            Some("python") => Language::Python,
            Some("sh") => Language::Sh,
            Some("console") => Language::Console,
            // A unit of systemd, which tests/guest/systemd.sh runs.
            Some("text" | "ini") => Language::Text,
            other => {
                let what = other.unwrap_or("none");
                let known = "rust, python, sh, console, text or ini";
                self.faults.push(format!("line {line}: the language of the block is {what}, not {known}"));
                Language::Text
            }
        };
        let attributes: Vec<&str> = words.collect();
        for unknown in attributes.iter().filter(|word| **word != "no_run") {
            self.faults.push(format!("line {line}: the attribute '{unknown}' is not 'no_run'"));
        }
        let no_run = attributes.contains(&"no_run");
        self.blocks.push(Block { line: line + 1, language, no_run, code: Vec::new() });
    }
}

/// The width of the marker of a list item with the spaces behind it.
fn list_marker(content: &str) -> Option<usize> {
    let digits = content.chars().take_while(char::is_ascii_digit).count();
    let rest = &content[digits..];
    let is_marker = if digits > 0 { rest.starts_with(". ") } else { rest.starts_with(['-', '*', '+']) };
    let behind = rest.get(1..).filter(|behind| is_marker && behind.starts_with(' '))?;
    Some(digits + 1 + behind.len() - behind.trim_start().len())
}

/// A command of a session, with the output that the document shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    pub line: usize,
    pub as_root: bool,
    pub command: String,
    pub sample: Vec<String>,
}

impl Block {
    /// The commands of a session.
    pub fn steps(&self) -> Result<Vec<Step>, String> {
        let mut steps: Vec<Step> = Vec::new();
        let mut lines = self.code.iter().zip(self.line..);
        while let Some((text, line)) = lines.next() {
            let root = text.strip_prefix("# ");
            match (root.or_else(|| text.strip_prefix("$ ")), steps.last_mut()) {
                (Some(command), _) => {
                    let mut command = command.to_string();
                    while command.ends_with('\\') {
                        let (more, _) = lines.next().ok_or(format!("line {line}: the command has no end"))?;
                        command = format!("{command}\n{}", more.strip_prefix("> ").unwrap_or(more));
                    }
                    steps.push(Step { line, as_root: root.is_some(), command, sample: Vec::new() });
                }
                (None, Some(step)) => step.sample.push(text.clone()),
                (None, None) => return Err(format!("line {line}: sample output without a command")),
            }
        }
        Ok(steps)
    }
}

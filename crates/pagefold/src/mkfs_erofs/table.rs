//! Reading a command line as getopt_long(3) does, with a table of options: words that are no options may stand anywhere, and
//! what follows `--` is none.

use crate::cli::output;
use clap::Args;
use pagefold_control::error::{CliError, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// An option of a program whose choices are a `T`.
pub struct Opt<T> {
    /// The name as it is typed: `-z` or `--quiet`.
    pub name: &'static str,
    pub value: Value,
    pub help: &'static str,
    /// Applies the option. The value is empty if there is none.
    pub set: fn(&mut T, &OsStr) -> Result<()>,
}

/// Whether an option has a value, and how that is called in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    None,
    Required(&'static str),
    /// After `=` only.
    Optional(&'static str),
}

/// An option of erofs-utils that cannot be followed.
pub struct Refused {
    pub name: &'static str,
    /// Why, and what to use in its place.
    pub why: &'static str,
}

/// A program with its options.
pub struct Program<T: 'static> {
    pub name: &'static str,
    /// The words after the options, for the help.
    pub usage: &'static str,
    pub about: &'static str,
    pub options: &'static [Opt<T>],
    pub refused: &'static [Refused],
}

impl<T> Program<T> {
    /// Applies the options of a command line in their order, and returns the other words.
    pub fn parse(&self, words: &[OsString], choices: &mut T) -> Result<Vec<OsString>> {
        let mut operands = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match word.as_bytes() {
                b"--" => {
                    operands.extend(words.by_ref().cloned());
                }
                [b'-', b'-', long @ ..] => self.long(long, &mut words, choices)?,
                [b'-', first, ..] if *first != b'-' => self.short(word, &mut words, choices)?,
                _ => operands.push(word.clone()),
            }
        }
        Ok(operands)
    }

    fn long<'a>(
        &self,
        word: &[u8],
        words: &mut impl Iterator<Item = &'a OsString>,
        choices: &mut T,
    ) -> Result<()> {
        let (name, given) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], Some(OsStr::from_bytes(&word[at + 1..]))),
            None => (word, None),
        };
        let name = format!("--{}", String::from_utf8_lossy(name));
        let option = self.find(&name)?;
        let value = match (option.value, given) {
            (Value::None, Some(_)) => return Err(self.error(&format!("{name} has no value"))),
            (Value::Required(_), None) => self.next_word(&name, words)?,
            (_, given) => given.unwrap_or_default(),
        };
        self.apply(option, value, choices)
    }

    /// Applies the letters of a word up to the first that has a value, which is the rest of the word or the next word.
    fn short<'a>(
        &self,
        word: &OsStr,
        words: &mut impl Iterator<Item = &'a OsString>,
        choices: &mut T,
    ) -> Result<()> {
        let mut rest = &word.as_bytes()[1..];
        while let Some((letter, after)) = rest.split_first() {
            let name = format!("-{}", char::from(*letter));
            let option = self.find(&name)?;
            rest = after;
            let value = match option.value {
                Value::None => OsStr::new(""),
                _ if !after.is_empty() => {
                    rest = &[];
                    OsStr::from_bytes(after)
                }
                _ => self.next_word(&name, words)?,
            };
            self.apply(option, value, choices)?;
        }
        Ok(())
    }

    fn next_word<'a>(&self, name: &str, words: &mut impl Iterator<Item = &'a OsString>) -> Result<&'a OsStr> {
        words.next().map(OsString::as_os_str).ok_or_else(|| self.error(&format!("{name} needs a value")))
    }

    fn find(&self, name: &str) -> Result<&Opt<T>> {
        if let Some(refused) = self.refused.iter().find(|refused| refused.name == name) {
            return Err(self.error(&format!("{name} is not possible: {}", refused.why)));
        }
        self.options.iter().find(|option| option.name == name).ok_or_else(|| {
            self.error(&format!("unknown option {name}: '{} --help' lists those that can be used", self.name))
        })
    }

    /// Applies an option. An error that does not name it gets its name.
    fn apply(&self, option: &Opt<T>, value: &OsStr, choices: &mut T) -> Result<()> {
        (option.set)(choices, value).map_err(|e| self.error(&format!("{}: {}", option.name, e.message)))
    }

    /// An error of the command line.
    pub fn error(&self, what: &str) -> CliError {
        CliError::usage(format!("{}: {what}", self.name))
    }

    /// Prints the help.
    pub fn print_help(&self) -> Result<()> {
        let mut text = format!("Usage: {} [OPTIONS] {}\n{}\n\nOptions:\n", self.name, self.usage, self.about);
        // An option without a help is the program's own.
        for option in self.options.iter().filter(|option| !option.help.is_empty()) {
            let is_long = option.name.starts_with("--");
            let shown = match option.value {
                Value::None => option.name.into(),
                Value::Required(value) if is_long => format!("{}={value}", option.name),
                Value::Required(value) => format!("{}{value}", option.name),
                Value::Optional("") => option.name.into(),
                Value::Optional(value) => format!("{}={value}, {}", option.name, option.name),
            };
            text.push_str(&format!(" {shown:<26} {}\n", option.help));
        }
        text.push_str("\nNot possible:\n");
        for Refused { name, why } in self.refused {
            text.push_str(&format!(" {name:<26} {why}\n"));
        }
        output::text(&text)
    }
}

/// The arguments of a command of `pagefold` with these operands, and the defaults of its options.
pub fn defaults<A: Args>(operands: &[&OsStr]) -> Result<A> {
    let command = A::augment_args(clap::Command::new("defaults").no_binary_name(true));
    let words = [OsStr::new("--")].into_iter().chain(operands.iter().copied());
    let parsed = command.try_get_matches_from(words).and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|e| CliError::usage(e.to_string()))
}

/// The value as text.
pub fn text(value: &OsStr) -> Result<&str> {
    value.to_str().ok_or_else(|| CliError::usage("the value is no text"))
}

/// The value as a whole number: of 64 bits, decimal, or hexadecimal after `0x`.
pub fn number<N: TryFrom<i128>>(value: &OsStr) -> Result<N> {
    let text = text(value)?;
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = parsed.ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| CliError::usage(format!("'{text}' is no number that is possible here")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Program<Vec<String>> = Program {
        name: "p",
        usage: "FILE",
        about: "About.",
        options: &[
            Opt {
                name: "-z",
                value: Value::Required("X"),
                help: "",
                set: |seen, value| push(seen, "z", value),
            },
            Opt { name: "-s", value: Value::None, help: "", set: |seen, value| push(seen, "s", value) },
            Opt {
                name: "--tar",
                value: Value::Optional("X"),
                help: "",
                set: |seen, value| push(seen, "tar", value),
            },
            Opt {
                name: "--path",
                value: Value::Required("X"),
                help: "",
                set: |seen, value| push(seen, "path", value),
            },
        ],
        refused: &[Refused { name: "--never", why: "write less" }],
    };

    fn push(seen: &mut Vec<String>, name: &str, value: &OsStr) -> Result<()> {
        if value == "bad" {
            return Err(CliError::usage("'bad' is wrong"));
        }
        seen.push(format!("{name}={}", text(value)?));
        Ok(())
    }

    fn parsed(line: &str) -> Result<(Vec<String>, Vec<OsString>)> {
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        let mut seen = Vec::new();
        let operands = PROGRAM.parse(&words, &mut seen)?;
        Ok((seen, operands))
    }

    #[test]
    fn words_are_read_as_getopt_reads_them() {
        let (seen, operands) =
            parsed("a -zlz4 -z lzma b --tar --tar=f --path x --path=y - -ssz1 -- -s").unwrap();
        assert_eq!(seen, ["z=lz4", "z=lzma", "tar=", "tar=f", "path=x", "path=y", "s=", "s=", "z=1"]);
        assert_eq!(operands, ["a", "b", "-", "-s"]);
    }

    #[test]
    fn what_cannot_be_followed_is_named() {
        for (line, says) in [
            ("--other", "unknown option --other: 'p --help'"),
            ("-x", "unknown option -x"),
            ("--never=1", "--never is not possible: write less"),
            ("--path", "--path needs a value"),
            ("-z", "-z needs a value"),
            ("-zbad", "p: -z: 'bad' is wrong"),
        ] {
            let error = parsed(line).unwrap_err().message;
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number::<u32>(OsStr::new("4096")).unwrap(), 4096);
        assert_eq!(number::<u32>(OsStr::new("0x10")).unwrap(), 16);
        assert_eq!(number::<i64>(OsStr::new("-1")).unwrap(), -1);
        assert!(number::<u32>(OsStr::new("-1")).is_err() && number::<u8>(OsStr::new("4K")).is_err());
    }
}

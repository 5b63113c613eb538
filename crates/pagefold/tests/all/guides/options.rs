//! Checks that the commands of a document exist and have the options that the document uses.

use crate::support::Sandbox;
use crate::support::help::options;

/// The faults of a use of pagefold, from its arguments: the command is none, or lacks an option.
pub fn faults(sandbox: &Sandbox, arguments: &[String]) -> Vec<String> {
    let path = path(arguments);
    let ran = sandbox.run(&format!("{} --help", path.join(" ")));
    if ran.code != 0 {
        return vec![format!("there is no command 'pagefold {}'", path.join(" "))];
    }
    let known = options(&ran.out);
    let used = arguments.iter().take_while(|word| *word != "--").filter(|word| word.starts_with('-'));
    let is_known = |word: &&String| match word.strip_prefix("--") {
        Some(name) => known.contains(&format!("--{}", name.split('=').next().unwrap_or_default())),
        // Of several letters the first one decides: the rest may be its value.
        None => match word.chars().nth(1).filter(char::is_ascii_alphabetic) {
            Some(letter) => {
                ran.out.contains(&format!(" -{letter},")) || ran.out.contains(&format!(" -{letter} "))
            }
            // A dash alone, or a negative number.
            None => true,
        },
    };
    let unknown = used.filter(|word| !is_known(word));
    unknown.map(|word| format!("'pagefold {}' has no option {word}", path.join(" "))).collect()
}

/// The words that name the command. Capital letters stand for any command.
fn path(arguments: &[String]) -> Vec<&str> {
    let mut words = arguments.iter().map(String::as_str);
    let mut path = Vec::new();
    while let Some(word) = words.next() {
        let is_name = |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        match word {
            "--color" => _ = words.next(),
            _ if word.starts_with('-') => {}
            _ if is_name(word) => path.push(word),
            _ => break,
        }
        if path.len() == 2 || path.first().is_some_and(|first| !["disk", "image"].contains(first)) {
            break;
        }
    }
    path
}

//! Finds the simple commands in a shell script: enough of the language for what documents contain.

/// A part of a script.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    /// The next word is a file.
    Redirect,
    /// A command ends.
    End,
}

/// Words that may stand before the name of a command.
const PREFIXES: [&str; 12] =
    ["sudo", "env", "time", "exec", "nohup", "if", "then", "else", "do", "while", "until", "!"];

/// The simple commands of a script, as words: those in substitutions and in quoted scripts too.
pub fn commands(script: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let (tokens, substitutions) = tokens(&without_heredocs(script));
    for script in substitutions {
        found.extend(commands(&script));
    }
    for tokens in tokens.split(|token| *token == Token::End) {
        let mut words: Vec<String> = Vec::new();
        let mut is_file = false;
        for token in tokens {
            match token {
                Token::Word(word) if !is_file => words.push(word.clone()),
                _ => {}
            }
            is_file = *token == Token::Redirect;
        }
        let is_assignment = |word: &str| {
            let name = word.split_once('=').map(|(name, _)| name);
            name.is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        };
        let begin = words.iter().position(|w| !is_assignment(w) && !PREFIXES.contains(&w.as_str()));
        for script in words.iter().filter(|word| word.contains("pagefold ")) {
            found.extend(commands(script));
        }
        if let Some(begin) = begin {
            found.push(words.split_off(begin));
        }
    }
    found
}

/// The script without the lines of here-documents.
fn without_heredocs(script: &str) -> String {
    let mut rest = String::new();
    let mut end: Option<String> = None;
    for line in script.lines() {
        match &end {
            Some(word) if line.trim() == word => end = None,
            Some(_) => {}
            None => {
                rest.push_str(line);
                rest.push('\n');
                let word = line.split_once("<<").map(|(_, behind)| behind.trim_start_matches(['-', ' ']));
                let word = word.map(|w| w.split([' ', '|', ';', '>', ')']).next().unwrap_or_default());
                end = word.map(|w| w.trim_matches(['\'', '"']).to_string());
            }
        }
    }
    rest
}

/// The tokens of a script, and the scripts of its substitutions.
fn tokens(script: &str) -> (Vec<Token>, Vec<String>) {
    let (mut tokens, mut substitutions) = (Vec::new(), Vec::new());
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut chars = script.chars().peekable();
    fn end(tokens: &mut Vec<Token>, word: &mut Option<String>) {
        tokens.extend(word.take().map(Token::Word));
    }
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\n') | None => {}
                Some(next) => word.get_or_insert_default().push(next),
            },
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '$' if chars.peek() == Some(&'(') => {
                let mut depth = 0;
                let is_inside = |c: &char| {
                    depth += i32::from(*c == '(') - i32::from(*c == ')');
                    depth > 0
                };
                let inside: String = chars.by_ref().take_while(is_inside).skip(1).collect();
                substitutions.push(inside);
                word.get_or_insert_default().push('$');
            }
            _ if is_quoted => word.get_or_insert_default().push(c),
            '\'' => word.get_or_insert_default().extend(chars.by_ref().take_while(|c| *c != '\'')),
            '#' if word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
            '|' | '&' | ';' | '\n' | '(' | ')' => {
                end(&mut tokens, &mut word);
                tokens.push(Token::End);
            }
            '>' | '<' => {
                // A number before it is a descriptor.
                if word.as_ref().is_none_or(|word| word.parse::<u32>().is_err()) {
                    end(&mut tokens, &mut word);
                }
                word = None;
                while chars.next_if(|c| ['>', '<', '&'].contains(c)).is_some() {}
                tokens.push(Token::Redirect);
            }
            _ if c.is_whitespace() => end(&mut tokens, &mut word),
            _ => word.get_or_insert_default().push(c),
        }
    }
    end(&mut tokens, &mut word);
    (tokens, substitutions)
}

/// The arguments of a command if it runs pagefold, through cargo too.
pub fn arguments(words: &[String]) -> Option<&[String]> {
    let (name, rest) = words.split_first()?;
    match name.as_str() {
        "pagefold" => Some(rest),
        "cargo" if rest.first()? == "run" => {
            let begin = rest.iter().position(|word| word == "--")?;
            let cargo = &rest[..begin];
            let is_other = |w: &[String]| (w[0] == "-p" && w[1] != "pagefold") || w[0] == "--example";
            (!cargo.windows(2).any(is_other)).then(|| &rest[begin + 1..])
        }
        _ => None,
    }
}

#[test]
fn commands_are_found_in_a_script() {
    let script = r#"
# pagefold in a comment
dev=$(pagefold disk create --size 4G)   # pagefold here too
mkfs.ext4 -q "$dev" && echo "of $(pagefold disk list --json | wc -l) disks" >out 2>&1
if ! pagefold image check \
    app.erofs; then exit 1; fi
pagefold disk create --run '
    pagefold disk show "$PAGEFOLD_NAME"'
cat <<END | sort
pagefold is not run
END
cargo run --release -- disk list; cargo run -p pagefold-bench -- store
"#;
    let found = commands(script);
    let of = |name: &str| found.iter().filter(|words| words[0] == name).count();
    assert_eq!((of("mkfs.ext4"), of("echo"), of("wc"), of("cat"), of("sort"), of("out")), (1, 1, 1, 1, 1, 0));
    let mut pagefold: Vec<String> = found.iter().filter_map(|w| arguments(w)).map(|w| w.join(" ")).collect();
    pagefold.sort();
    assert_eq!(pagefold.len(), 6, "{pagefold:?}");
    assert!(pagefold[0].starts_with("disk create --run"), "{pagefold:?}");
    assert_eq!(pagefold[1..3], ["disk create --size 4G", "disk list"]);
    assert_eq!(pagefold[3..], ["disk list --json", "disk show $PAGEFOLD_NAME", "image check app.erofs"]);
}

//! The header `WWW-Authenticate`: how a registry wants to be asked.
//!
//! A server may send several challenges, in one header or in several. Anything that is not well formed ends the parsing;
//! what came before it counts.

/// The longest header that is parsed, bytes.
const MAX_BYTES: usize = 8 << 10;

/// The challenge that is answered: the first for a token, or else for a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A token from another server.
    Bearer {
        /// The URL of that server.
        realm: String,
        /// The name of the registry there.
        service: Option<String>,
        /// The access that is needed.
        scope: Option<String>,
    },
    /// User and password.
    Basic,
}

impl Challenge {
    /// Parses all headers of an answer, each on a line.
    pub fn parse(headers: &str) -> Option<Self> {
        if headers.len() > MAX_BYTES {
            return None;
        }
        let all: Vec<_> = headers.lines().flat_map(challenges).collect();
        let is_basic = all.iter().any(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"));
        let bearer = all.into_iter().filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).find_map(
            |(_, parameters)| {
                let find = |name: &str| {
                    let mut found = parameters.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
                    found.next().map(|(_, value)| value.clone())
                };
                find("realm").map(|realm| Challenge::Bearer {
                    realm,
                    service: find("service"),
                    scope: find("scope"),
                })
            },
        );
        bearer.or(is_basic.then_some(Challenge::Basic))
    }
}

type Parameters = Vec<(String, String)>;

/// The schemes of a header, with their parameters.
fn challenges(line: &str) -> Vec<(String, Parameters)> {
    let mut found: Vec<(String, Parameters)> = Vec::new();
    let mut rest = line.trim_start_matches([' ', '\t', ',']);
    while !rest.is_empty() {
        let Some((word, after)) = token(rest) else { break };
        let after_space = after.trim_start_matches([' ', '\t']);
        match after_space.strip_prefix('=') {
            // A parameter of the scheme before it.
            Some(value) if !found.is_empty() => {
                let Some((value, after)) = parameter_value(value.trim_start_matches([' ', '\t'])) else {
                    break;
                };
                if let Some((_, parameters)) = found.last_mut() {
                    parameters.push((word.to_string(), value));
                }
                rest = after;
            }
            Some(_) => break,
            None => {
                found.push((word.to_string(), Vec::new()));
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    found
}

/// A word of the characters of tokens, and what follows it.
fn token(text: &str) -> Option<(&str, &str)> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let end = text.find(|c: char| !is_token(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// A word, or a text in quotes with escapes, and what follows it.
fn parameter_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return Some((text[..end].to_string(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let owned = |text: Option<&str>| text.map(String::from);
        Some(Challenge::Bearer { realm: realm.into(), service: owned(service), scope: owned(scope) })
    }

    #[test]
    fn challenges_of_registries_are_parsed() {
        let hub = "Bearer realm=\"https://auth.docker.io/token\",service=\"registry.docker.io\",\
            scope=\"repository:library/debian:pull,push\"";
        let scope = Some("repository:library/debian:pull,push");
        let parsed = bearer("https://auth.docker.io/token", Some("registry.docker.io"), scope);
        assert_eq!(Challenge::parse(hub), parsed);
        assert_eq!(Challenge::parse(&format!("Basic realm=\"x, y\", {hub}")), parsed);
        assert_eq!(Challenge::parse(&format!("Basic realm=x\n{hub}")), parsed);
        assert_eq!(
            Challenge::parse("bearer  realm = \"a\\\"b\" , error=invalid"),
            bearer("a\"b", None, None)
        );
        assert_eq!(Challenge::parse("Basic realm=\"Registry\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("BASIC"), Some(Challenge::Basic));
        for text in ["", "Digest realm=x", "Bearer", "Bearer realm=\"x", "realm=x", "\"", &"a".repeat(9000)] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "((Bearer|Basic|realm|scope)?[ =,\"\\\\a-z\n]{0,6}){0,12}", other in ".{0,60}") {
            for text in [text, other] {
                let _ = Challenge::parse(&text);
            }
        }

        #[test]
        fn a_realm_is_read_back(realm in "[ -~]{0,30}") {
            let quoted = realm.replace('\\', "\\\\").replace('"', "\\\"");
            let text = format!("Basic realm=\"x\", Bearer service=a,realm=\"{quoted}\"");
            prop_assert_eq!(Challenge::parse(&text), bearer(&realm, Some("a"), None));
        }
    }
}

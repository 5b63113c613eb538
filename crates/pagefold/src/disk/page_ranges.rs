//! Ranges of pages on the command line, such as `0-24999`.

use pagefold_control::error::{CliError, Result};

/// Most ranges in one command: a request to the server has a maximum length.
const MAX_RANGES: usize = 250;

/// Parses the values of `--pages`: the first and the last page of each, both included.
pub fn parse(texts: &[String]) -> Result<Vec<(u64, u64)>> {
    if texts.len() > MAX_RANGES {
        return Err(CliError::usage(format!("--pages: at most {MAX_RANGES} ranges in one command")));
    }
    texts.iter().map(|text| range(text)).collect()
}

fn range(text: &str) -> Result<(u64, u64)> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if plain { digits.parse::<u64>().ok() } else { None }
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        (Some(_), Some(_)) => Err(CliError::usage(format!("--pages: {text} ends before it starts (ERANGE)"))),
        _ => Err(CliError::usage(format!("--pages: '{text}' is not a range of pages, such as 0-24999"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagefold_control::error::Exit;

    #[test]
    fn a_range_is_two_pages_or_one() {
        assert_eq!(range("1-25000").unwrap(), (1, 25000));
        assert_eq!(range("7").unwrap(), (7, 7));
        for bad in ["", "-", "1-", "-1", "a-b", "1-2-3", "+1", "2-1", "99999999999999999999"] {
            assert_eq!(range(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
        parse(&vec!["1-2".to_string(); MAX_RANGES]).unwrap();
        parse(&vec!["1-2".to_string(); MAX_RANGES + 1]).unwrap_err();
    }
}

//! Extracts the text of one element of XML for error messages and keys. Nothing is decoded, and nothing is trusted.

/// The text of the first element of this name, if it is a word. The few answers that matter are flat XML, and a word that
/// is found where it does not belong does no harm: it is shown, or compared with a known one.
pub(crate) fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let text = text_of_element(xml, name)?;
    let is_word = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.');
    is_word.then_some(text)
}

/// The text of the first element of this name, without anything decoded.
pub(crate) fn text_of_element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let start = xml.find(&format!("<{name}>"))? + name.len() + 2;
    xml[start..].split('<').next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_answers_are_found_and_other_texts_are_none() {
        let xml = "<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code><Region>eu-west-3</Region></Error>";
        assert_eq!((element(xml, "Code"), element(xml, "Region")), (Some("ExpiredToken"), Some("eu-west-3")));
        for xml in ["", "<Code>", "<Code></Code>", "<Code>a b</Code>", "<Code>\u{1b}[2J</Code>", "Code"] {
            assert_eq!(element(xml, "Code"), None, "{xml}");
        }
    }
}

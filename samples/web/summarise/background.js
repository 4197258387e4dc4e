// Opens the panel beside the page. A click on the icon, unlike a panel that opens by itself, lets it read that page.

chrome.action.onClicked.addListener(({ windowId }) => chrome.sidePanel.open({ windowId }));

// What the summarise sample uses of an extension's API, for the type checker.

declare var chrome: {
  action: { onClicked: { addListener(listener: (tab: { windowId: number }) => void): void } };
  sidePanel: { open(options: { windowId: number }): Promise<void> };
  tabs: { query(asked: { active: boolean; currentWindow: boolean }): Promise<{ id: number }[]> };
  scripting: {
    executeScript<T>(injection: { target: { tabId: number }; func: () => T }): Promise<{ result: T }[]>;
  };
};

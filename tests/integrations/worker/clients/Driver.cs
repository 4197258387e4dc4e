// Sends the cases of a file through the C# client, and prints what came of each as a line of JSON.
// Driver.exe CASES PROGRAM ARGUMENTS
using System;
using System.Collections.Generic;
using System.IO;
using System.Threading;
using System.Threading.Tasks;
using Embedllm;

internal static class Driver
{
    private static int Main(string[] arguments)
    {
        var cases = (List<object>)Json.ReadObject("{\"cases\":" + File.ReadAllText(arguments[0]) + "}")["cases"];
        using (var worker = new WorkerClient(arguments[1], arguments[2]))
            foreach (Dictionary<string, object> one in cases)
                Console.WriteLine(Json.Write(Run(worker, one).Result));
        return 0;
    }

    private static async Task<Dictionary<string, object>> Run(WorkerClient worker, Dictionary<string, object> asked)
    {
        object most, found;
        asked.TryGetValue("cancel_after", out most);
        asked.TryGetValue("params", out found);
        var parameters = (Dictionary<string, object>)found ?? new Dictionary<string, object>();
        var chunks = new List<object>();
        var outcome = new Dictionary<string, object> { { "chunks", chunks } };
        using (var stop = new CancellationTokenSource())
        {
            Action<Chunk> onChunk = chunk =>
            {
                var told = chunk.ToJson();
                told.Remove("id");
                chunks.Add(told);
                if (most != null && chunks.Count == (long)most) stop.Cancel();
            };
            if (most != null && (long)most == 0) stop.Cancel();
            try
            {
                outcome["result"] = asked.ContainsKey("is_raw")
                    ? await worker.RequestAsync((string)asked["method"], parameters, onChunk, stop.Token)
                    : await Typed(worker, (string)asked["method"], parameters, onChunk, stop.Token);
            }
            catch (WorkerException error)
            {
                outcome["error"] = new Dictionary<string, object>
                    { { "code", error.Code }, { "message", error.Message }, { "data", error.Details } };
            }
        }
        return outcome;
    }

    private static async Task<object> Typed(WorkerClient worker, string method, Dictionary<string, object> parameters,
                                            Action<Chunk> onChunk, CancellationToken cancellation)
    {
        switch (method)
        {
            case "initialize": return await worker.InitializeAsync(InitializeParams.From(parameters), cancellation);
            case "devices": return await worker.DevicesAsync(cancellation);
            case "load": return await worker.LoadAsync(LoadParams.From(parameters), cancellation);
            case "generate": return await worker.GenerateAsync(GenerateParams.From(parameters), onChunk, cancellation);
            case "chat": return await worker.ChatAsync(ChatParams.From(parameters), onChunk, cancellation);
            case "unload": await worker.UnloadAsync(cancellation); return new Dictionary<string, object>();
            case "shutdown": await worker.ShutdownAsync(cancellation); return new Dictionary<string, object>();
            default: throw new ArgumentException(method);
        }
    }
}
